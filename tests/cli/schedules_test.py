#!/usr/bin/env python3
# Sanitized builds leave this out: it starts the program often, and tests of modules have what it runs.
"""Schedules by name and as files: plan, compare, simulate.

Standard library only. Skipped (77) where the program is not built.
"""

import json
import sys
import unittest

from command import BINARY, FIXTURES, Command

GPT2 = str(FIXTURES / "gpt2.pt2")
TOWERS = str(FIXTURES / "two_tower.pt2")
JOB = (GPT2, "--cluster", "2xV100-16GB", "--batch", 16, "--micro-batch", 2)


class Schedules(Command):
    def planned(self, *arguments):
        return json.loads(self.espalier("plan", *arguments, "--json").stdout)

    def simulated(self, *arguments):
        return json.loads(self.espalier("simulate", *arguments, "--json").stdout)

    def test_a_schedule_for_several_stages_a_device_gets_a_plan_that_is_laid_for_it(self):
        for name, devices in (("interleaved,chunks=2", [0, 1, 0, 1]), ("zbv", [0, 1, 1, 0])):
            planned = self.planned(*JOB, "--schedule", name)
            self.assertEqual(planned["planner"], "looped")
            self.assertEqual([stage["devices"] for stage in planned["stages"]], [[f"gpu:{i}"] for i in devices])
            self.assertEqual(self.simulated("plan.json")["iteration_ns"], planned["iteration_ns"])
            self.assertEqual(self.simulated("plan.json", "-s", name)["iteration_ns"], planned["iteration_ns"])

    def test_a_search_is_never_slower_and_takes_any_plan(self):
        for job in (JOB, (TOWERS, "--cluster", "3xV100-16GB", "--batch", 16, "--micro-batch", 4)):
            before = self.planned(*job, "--planner", "branches" if job is not JOB else "even")
            after = self.simulated("plan.json", "--schedule", "search")
            self.assertLessEqual(after["iteration_ns"], before["iteration_ns"])
            self.assertTrue(after["fits"])

    def test_orders_are_written_and_read_back_in_both_forms(self):
        self.planned(*JOB, "--schedule", "zbv")
        for file in ("orders.txt", "orders.csv"):
            written = self.simulated("plan.json", "--schedule", "v-half", "--orders", file)
            self.assertEqual(self.simulated("plan.json", "--schedule", file)["iteration_ns"], written["iteration_ns"])
        self.assertTrue((self.folder / "orders.csv").read_text().startswith("0F0,"))
        self.assertTrue((self.folder / "orders.txt").read_text().startswith("gpu:0"))

    def test_where_a_schedule_does_not_apply_one_line_says_why(self):
        self.planned(*JOB, "--planner", "even")
        self.refused("simulate", "plan.json", "-s", "zbv", says=["--schedule zbv", "each device has 1 stage", "looped"])
        self.refused("simulate", "plan.json", "-s", "zbv,k=2", says="its parameters are limit=N")
        self.refused("simulate", "plan.json", "-s", "zbw", says="a schedule file")
        self.write("wrong.csv", "0F0,1F0\n")
        self.refused("simulate", "plan.json", "-s", "wrong.csv", says=["wrong.csv: row 1", "another device"])
        none = self.espalier("plan", *JOB[:-1], 8, "--schedule", "dualpipev", code=3)
        self.assertIn("2 micro-batches; it needs two for each device, 4", none.stdout)


if __name__ == "__main__":
    if not BINARY:
        sys.exit(77)
    unittest.main()
