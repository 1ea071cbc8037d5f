#!/usr/bin/env python3
"""What a command line gets wrong is told before any work, what it should know is told once.

Standard library only. Skipped (77) where the program is not built.
"""

import json
import os
import shutil
import sys
import unittest

from command import BINARY, FIXTURES, Command

MODEL = str(FIXTURES / "three_branch.pt2")
CLUSTER = "2xV100-16GB"


class BeforeWork(Command):
    # The model of these does not exist: whatever is told first was not found out by reading it.

    def test_a_column_that_does_not_exist_is_told_before_the_model_is_read(self):
        self.refused("compare", "gone.pt2", "--columns", "planner,nosuch", says=["no column 'nosuch'", "iteration"])

    def test_a_planner_or_schedule_that_does_not_exist_is_told_before_the_model_is_read(self):
        self.refused("compare", "gone.pt2", "-p", "single,branchs", says="did you mean 'branches'?")
        self.refused("plan", "gone.pt2", "--schedule", "2f2b", says="1f1b or gpipe")

    def test_a_cluster_or_costs_that_cannot_be_read_are_told_before_the_model_is_read(self):
        self.refused("plan", "gone.pt2", "--cluster", "2xV900", says="V900")
        self.refused("plan", "gone.pt2", "--costs", "none.json", says="none.json")

    def test_outputs_in_a_folder_that_is_missing_are_told_before_the_model_is_read(self):
        for verb, option in (("plan", "-o"), ("plan", "--svg"), ("plan", "--chrome"), ("plan", "--trace"),
                             ("compare", "--svg"), ("simulate", "-o"), ("simulate", "--svg")):
            self.refused(verb, "gone.pt2", option, "nowhere/x", says=["no folder 'nowhere'", "nowhere/x"])
        self.refused("diff", "gone.json", "gone2.json", "--svg", "nowhere/x", says="no folder 'nowhere'")

    def test_an_output_that_is_a_folder_is_refused(self):
        (self.folder / "there").mkdir()
        self.refused("plan", "gone.pt2", "-o", "there", says="is a folder")

    @unittest.skipIf(os.geteuid() == 0, "root may write anywhere")
    def test_an_output_in_a_folder_that_may_not_be_written_to_is_refused(self):
        (self.folder / "there").mkdir(mode=0o555)
        self.refused("plan", "gone.pt2", "-o", "there/plan.json", says="may not be written to")

    def test_nothing_that_is_read_is_overwritten(self):
        shutil.copy(MODEL, self.folder / "model.pt2")
        before = (self.folder / "model.pt2").read_bytes()
        (self.folder / "link.pt2").symlink_to("model.pt2")
        self.refused("plan", "model.pt2", "-o", "model.pt2", says="would be lost")
        self.refused("plan", "model.pt2", "--svg", "./model.pt2", says="would be lost")
        self.refused("compare", "model.pt2", "--svg", "link.pt2", says="would be lost")
        self.assertEqual((self.folder / "model.pt2").read_bytes(), before)
        self.espalier("plan", "model.pt2", "--cluster", CLUSTER)
        plan = (self.folder / "plan.json").read_bytes()
        self.refused("simulate", "plan.json", "-o", "plan.json", says="would be lost")
        self.refused("diff", "plan.json", "plan.json", "--svg", "plan.json", says="would be lost")
        self.assertEqual((self.folder / "plan.json").read_bytes(), plan)

    def test_two_outputs_are_two_files(self):
        self.refused("plan", "gone.pt2", "--svg", "x", "--chrome", "./x", says="writes this file, too")

    def test_a_pin_that_matches_nothing_is_told_and_nothing_is_written(self):
        self.refused("plan", MODEL, "--cluster", CLUSTER, "--pin", "nosuch.*=gpu:0", says="matches no operator")
        self.refused("compare", MODEL, "--cluster", CLUSTER, "--pin", "nosuch.*=gpu:0", says="matches no operator")
        self.assertEqual(list(self.folder.glob("*.json")), [])

    # Once

    def test_no_note_and_no_warning_is_said_twice(self):
        self.write("model.txt", "batch 1..64\nx = input() : f32[b,4]\nw = parameter(w) : f32[4,4]\n"
                                "h = linear(x, w) : f32[b,4]\nu = somebodys(h) : f32[b,4] @unknown\n"
                                "loss = mean(u) : f32[]\nreturn loss\n")
        for verb in ("plan", "compare", "inspect"):
            lines = self.espalier(verb, "model.txt", "--cluster", CLUSTER).stderr.splitlines()
            self.assertEqual(len(lines), len(set(lines)), lines)
            about = [line for line in lines if "somebodys" in line]
            self.assertEqual(len(about), 1, lines)
        planned = json.loads(self.espalier("plan", "model.txt", "--cluster", CLUSTER, "--json").stdout)
        self.assertEqual(len([line for line in planned["warnings"] if "somebodys" in line]), 1)

    # This machine

    @unittest.skipIf(shutil.which("taskset") is None, "no taskset")
    def test_workers_are_the_processors_that_this_process_may_use(self):
        first = str(min(os.sched_getaffinity(0)))
        self.espalier("plan", MODEL, "--cluster", "local", prefix=("taskset", "-c", first))
        plan = json.loads((self.folder / "plan.json").read_text())
        self.assertEqual(len(plan["cluster"]["devices"]), 1)


if __name__ == "__main__":
    if not BINARY:
        sys.exit(77)
    unittest.main()
