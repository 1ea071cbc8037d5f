#!/usr/bin/env python3
"""Schedules by name that run: several stages of a chain on a device, in a loop and in a V, and backward in two halves, as a
user types them.

Standard library only. Skipped (77) where the program is not built.
"""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from command import BINARY, FIXTURES, Command, action_counts  # noqa: E402

JOB = (str(FIXTURES / "gpt2.pt2"), "--cluster", "local:2", "--batch", 16, "--micro-batch", 2, "--seed", 5)


class SchedulesRun(Command):
    def printed(self, *arguments):
        return json.loads(self.espalier(*arguments, "--json").stdout)

    def planned(self, name, *arguments):
        return self.printed("plan", *JOB, "-o", name, *arguments)

    def actions(self, plan, trace):
        compared = self.printed("diff", plan, trace)
        self.assertEqual(compared["only_in_a"] + compared["only_in_b"], [])
        return action_counts(compared)

    def test_looped_plans_are_verified_and_run(self):
        for name, devices in (("interleaved,chunks=2", [0, 1, 0, 1]), ("zbv", [0, 1, 1, 0])):
            planned = self.planned("looped.json", "--planner", "looped", "--schedule", name)
            self.assertEqual([stage["devices"] for stage in planned["stages"]], [[f"cpu:{i}"] for i in devices])
            self.assertTrue(self.printed("verify", "looped.json", "--steps", 2)["equal"], name)
        found = self.printed("run", "looped.json", "--steps", 2, "--trace", "measured.json")
        self.assertEqual((found["workers"], len(found["steps"])), (2, 2))
        counts = self.actions("looped.json", "measured.json")
        self.assertEqual([counts["cpu:0", letter] for letter in "FIW"], [16, 16, 16])  # two stages, eight micro-batches

    def test_lists_with_backward_in_two_halves_are_verified_and_run(self):
        self.planned("even.json", "--planner", "even")
        self.espalier("simulate", "even.json", "--schedule", "zb-h1", "--orders", "orders.txt")
        for orders in ("zb-h1", "orders.txt"):
            self.assertTrue(self.printed("verify", "even.json", "--schedule", orders)["equal"], orders)
        found = self.printed("run", "even.json", "--schedule", "orders.txt", "--steps", 2)
        plain = self.printed("run", "even.json", "--steps", 2)
        for split, whole in zip(found["steps"], plain["steps"]):
            self.assertAlmostEqual(split["loss"], whole["loss"], delta=1e-4 * whole["loss"])


if __name__ == "__main__":
    if not BINARY:
        sys.exit(77)
    unittest.main()
