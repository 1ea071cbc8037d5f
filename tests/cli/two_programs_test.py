#!/usr/bin/env python3
"""Two programs behind one command: `espalier` begins without libtorch and becomes espalier-runtime to execute models.

Standard library only. Skipped (77) where the program is not built.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

from command import BINARY, FIXTURES, Command, environment

RUNTIME = BINARY and pathlib.Path(BINARY).with_name("espalier-runtime")
VERBS = {"run": ["plan.json"], "verify": ["plan.json"], "profile": ["model.pt2"], "calibrate": [],
         "launch": ["-n", "2", "--", "run", "plan.json"],
         "learn": ["curve", "checkpoint.safetensors"]}  # fmt: skip


class TwoPrograms(Command):
    def plan(self):
        self.espalier("plan", FIXTURES / "three_branch.pt2", "-c", "local:2", "-b", "16", "--planner", "even", "-o", "plan.json")

    def needed_by(self, program):
        return subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout

    def test_the_command_needs_no_libtorch(self):
        self.assertNotIn("torch", self.needed_by(BINARY))
        if RUNTIME.exists():
            self.assertIn("torch", self.needed_by(RUNTIME))

    def test_a_profile_of_a_size_that_the_model_lacks_ends_before_workers_start(self):
        if not RUNTIME.exists():
            self.skipTest("a build without runtime")
        done = self.espalier("profile", FIXTURES / "three_branch.pt2", "-m", "1", "--workers", "2", "-o", "costs.json", code=2)
        self.assertEqual(done.stderr.strip(), "espalier: --micro-batch 1: the model was exported for 2 samples or more")

    def test_without_its_other_half_a_verb_that_executes_is_one_line(self):
        alone = self.folder / "espalier"
        shutil.copy(BINARY, alone)
        for verb, arguments in VERBS.items():
            done = subprocess.run([alone, verb, *arguments], cwd=self.folder, env=environment(), capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            (line,) = done.stderr.splitlines()
            self.assertIn(f"`{verb}` needs", line)
            self.assertIn("espalier-runtime: is missing" if RUNTIME.exists() else "has no runtime", line)

    def test_help_and_wrong_options_are_the_same_in_both(self):
        if not RUNTIME.exists():
            self.skipTest("a build without runtime")
        for arguments in [["--help"], ["--version"], ["runn"], *([verb, "--help"] for verb in VERBS), ["run", "plan.json", "--step", "1"]]:
            ran = [subprocess.run([program, *arguments], cwd=self.folder, env=environment(), capture_output=True, text=True)
                   for program in (BINARY, RUNTIME)]  # fmt: skip
            self.assertEqual(*((done.returncode, done.stdout, done.stderr) for done in ran))

    def test_a_link_in_another_folder_finds_it(self):
        if not RUNTIME.exists():
            self.skipTest("a build without runtime")
        self.plan()
        link = self.folder / "link"
        link.symlink_to(BINARY)
        done = subprocess.run([link, "verify", "plan.json"], cwd=self.folder, env=environment(), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def processes(self):
        """Those that work in this test's folder."""
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (process / "cwd").resolve() == self.folder.resolve() and "State:\tZ" not in (process / "status").read_text():
                    found.append(process.name)
            except OSError:  # it ended meanwhile
                pass
        return found

    def test_a_signal_to_the_command_ends_all_workers(self):
        if not RUNTIME.exists():
            self.skipTest("a build without runtime")
        self.plan()
        for command in (["run", "plan.json"], ["launch", "-n", "2", "--", "run", "plan.json"]):
            # It tells of each of its first steps: then both workers train.
            started = subprocess.Popen([BINARY, *command, "--steps", "1000000000", "--log", "log"], cwd=self.folder, env=environment(),
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
            self.assertIn("step 1/", started.stdout.readline())
            self.assertEqual(len(self.processes()), 3)
            started.send_signal(signal.SIGTERM)
            out = started.communicate(timeout=60)[0]
            self.assertEqual(started.returncode, 130, out)
            deadline = time.monotonic() + 10
            while self.processes() and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertEqual(self.processes(), [])


if __name__ == "__main__":
    if not BINARY:
        print("ESPALIER_BINARY is not set: skipped")
        sys.exit(77)
    unittest.main()
