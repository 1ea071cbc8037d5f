#!/usr/bin/env python3
"""This machine is calibrated once, for `local` alone, and remembered. Nothing here depends on the figures.

Standard library only. Skipped (77) where the program is not built.
"""

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from command import BINARY, FIXTURES, Command

MODEL = str(FIXTURES / "three_branch.pt2")


class Calibration(Command):
    def setUp(self):
        super().setUp()
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache"), "ESPALIER_CALIBRATION": "on"}
        for variable in ("RANK", "WORLD_SIZE"):
            self.environment.pop(variable, None)
        self.remembered = self.folder / "cache" / "espalier" / "calibration.json"

    def call(self, *arguments):
        done = subprocess.run([BINARY, *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True,
                              timeout=120)
        self.assertEqual(done.returncode, 0, f"{arguments}\n{done.stdout}\n{done.stderr}")
        return done

    def kind(self, plan):
        return json.loads((self.folder / plan).read_text())["cluster"]["kinds"][0]

    def test_it_is_made_once_told_once_and_used_for_local_alone(self):
        first = self.call("plan", MODEL, "--cluster", "local", "-o", "first.json")
        self.assertEqual(first.stderr.count("local: calibrated in"), 1, first.stderr)
        self.assertIn(str(self.remembered), first.stderr)
        calibrations = json.loads(self.remembered.read_text())["calibrations"]
        self.assertEqual(len(calibrations), 1)
        self.assertEqual(self.kind("first.json")["flops_f32"], calibrations[0]["flops_f32"])
        self.assertEqual(self.kind("first.json")["launch_ns"], calibrations[0]["launch_ns"])

        before = self.remembered.read_bytes()
        second = self.call("plan", MODEL, "--cluster", "local", "-o", "second.json")
        self.assertNotIn("calibrated", second.stderr)
        self.assertEqual((self.folder / "first.json").read_bytes(), (self.folder / "second.json").read_bytes())

        self.call("plan", MODEL, "--cluster", "2xcpu", "-o", "preset.json")
        self.assertNotEqual(self.kind("preset.json")["flops_f32"], calibrations[0]["flops_f32"])
        self.assertEqual(self.remembered.read_bytes(), before)

        # A file that cannot be read is made again.
        self.remembered.write_text("{")
        self.assertIn("calibrated in", self.call("plan", MODEL, "--cluster", "local", "-o", "third.json").stderr)
        self.assertEqual(len(json.loads(self.remembered.read_text())["calibrations"]), 1)


if __name__ == "__main__":
    if not BINARY:
        sys.exit(77)
    unittest.main()
