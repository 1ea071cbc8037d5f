#!/usr/bin/env python3
"""A model without weights, made on PyTorch's meta device: every verb reads it but those that compute.

Standard library only. Skipped (77) where the program is not built.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BINARY = os.environ.get("ESPALIER_BINARY")
MODEL = str(pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "weightless.pt2")


class Weightless(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.plan = str(pathlib.Path(self.scratch.name) / "plan.json")
        self.espalier("plan", MODEL, "--cluster", "2xV100-16GB", "--planner", "even", "-o", self.plan)

    def tearDown(self):
        self.scratch.cleanup()

    def espalier(self, *arguments, code=0):
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        done = subprocess.run([BINARY, *arguments], cwd=self.scratch.name, env=environment, capture_output=True,
                              text=True, timeout=120)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}\n{done.stderr}")
        return done

    def test_inspect_counts_its_parameters_and_knows_its_ties(self):
        found = json.loads(self.espalier("inspect", MODEL, "--json").stdout)
        self.assertEqual(found["parameters"], 12_583_936)  # 12288 × 1024 tied, and 1024
        self.assertEqual(found["ties"], [["embed.weight", "head.weight"]])

    def test_it_is_compared_and_simulated(self):
        self.espalier("compare", MODEL, "--cluster", "2xV100-16GB", "--planner", "single,even")
        self.espalier("simulate", self.plan)

    def test_verbs_that_compute_say_what_is_missing(self):
        if "has no runtime" in subprocess.run([BINARY, "verify", self.plan], capture_output=True, text=True).stderr:
            self.skipTest("a build without runtime")
        for command in (["verify", self.plan, "--workers", "1"], ["run", self.plan, "--workers", "1", "--steps", "1"],
                        ["profile", MODEL, "--workers", "1"]):  # fmt: skip
            done = self.espalier(*command, code=2)
            (line,) = [x for x in done.stderr.splitlines() if not x.startswith(("note:", "warning:"))]
            self.assertIn("holds no weights", line)
            self.assertIn("export the model with its weights", line)


if __name__ == "__main__":
    if not BINARY:
        sys.exit(77)
    unittest.main()
