#!/usr/bin/env python3
"""Ctrl-C while plans are searched: the best so far is kept and said to be no more than that.

Standard library only. Skipped (77) where the program is not built.
"""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
import unittest

from command import BINARY, Command, environment

CLUSTER = ["-c", "+".join(["8xA100-80GB"] * 4), "-b", "256", "--jobs", "1"]  # planned for longer than a signal takes


class Interrupt(Command):
    def interrupted(self, *arguments):
        """Exit code, standard output and what the terminal showed; Ctrl-C comes once a plan is found."""
        self.espalier("zoo", "mmt", "--layers", "8", "-o", "model.json")
        terminal, of_program = pty.openpty()
        process = subprocess.Popen([BINARY, *arguments], cwd=self.folder, env=environment(), text=True,
                                   stdout=subprocess.PIPE, stderr=of_program)  # fmt: skip
        os.close(of_program)
        shown, sent, deadline = "", False, time.monotonic() + 60
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 1)[0]:
                continue
            try:
                shown += os.read(terminal, 4096).decode(errors="replace")
            except OSError:  # the program has ended
                break
            if not sent and "best " in shown:
                process.send_signal(signal.SIGINT)
                sent = True
        if process.poll() is None and not sent:
            process.kill()
        out = process.communicate(timeout=60)[0]
        os.close(terminal)
        self.assertTrue(sent, shown)
        return process.returncode, out, shown

    def test_plan_writes_the_best_so_far(self):
        code, out, shown = self.interrupted("plan", "model.json", *CLUSTER, "-o", "plan.json")
        self.assertEqual(code, 0, out + shown)
        self.assertIn("interrupted: the best plan found so far", out)
        self.assertIn("above the bound", shown)
        plan = json.loads((self.folder / "plan.json").read_text())
        self.assertTrue(any("interrupted" in note for note in plan["notes"]), plan["notes"])
        self.espalier("simulate", "plan.json")

    def test_compare_shows_what_was_found(self):
        code, out, shown = self.interrupted("compare", "model.json", *CLUSTER)
        self.assertEqual(code, 0, out + shown)
        self.assertIn("interrupted", out)  # rows that were not begun
        self.assertIn("note: interrupted: what was found so far", shown.replace("\x1b[38;5;67m", "").replace("\x1b[0m", ""))
        self.assertIn("best: ", out)


class Counts(Command):
    def test_states_and_evaluations_are_shown_by_name(self):
        self.espalier("zoo", "mmt", "--layers", "2", "-o", "model.json")
        csv = self.espalier("compare", "model.json", "-c", "4xV100-16GB", "-b", "8", "--format", "csv", "--columns",
                            "planner,states,evaluations").stdout.splitlines()  # fmt: skip
        self.assertEqual(csv[0], "planner,states,evaluations")
        self.assertGreater(sum(int(row.split(",")[2] or 0) for row in csv[1:]), 0)
        usual = self.espalier("compare", "model.json", "-c", "4xV100-16GB", "-b", "8").stdout.splitlines()[0].split()
        self.assertNotIn("states", usual)
        # Each heading is a name that --columns takes.
        self.espalier("compare", "model.json", "-c", "4xV100-16GB", "-b", "8", "--columns", ",".join(usual))

    def test_any_number_of_jobs_prints_the_same(self):
        self.espalier("zoo", "mmt", "--layers", "2", "-o", "model.json")
        plans = set()
        for jobs in ("1", "2", "3", "7"):
            self.espalier("plan", "model.json", "-c", "2xV100-16GB+2xV100-16GB", "-b", "8", "--jobs", jobs, "-o", "plan.json")
            plans.add((self.folder / "plan.json").read_bytes())
        self.assertEqual(len(plans), 1)


if __name__ == "__main__":
    if not BINARY:
        print("ESPALIER_BINARY is not set: skipped")
        sys.exit(77)
    unittest.main()
