#!/usr/bin/env python3
# Sanitized builds leave this out: it starts the program often, and tests of modules have what it runs.
"""`espalier fit` as a user meets it: a verdict, who takes the memory, what another cluster would give.

Standard library only. Skipped (77) where the program is not built.
"""

import json
import sys
import unittest

from command import BINARY, FIXTURES, Command

MODEL = str(FIXTURES / "three_branch.pt2")
JOB = ["--batch", "64", "--micro-batch", "8"]
TINY = "kind small 96KiB f32=1e9 mem=1GB\ngroup host 1GB\ndevice a small in host\ndevice b small in host\n"


class Fit(Command):
    def fit(self, *arguments, code=0):
        return json.loads(self.espalier("fit", MODEL, *JOB, "--json", *arguments, code=code).stdout)

    def test_what_fits_is_said_with_the_memory_of_the_fullest_device(self):
        said = self.espalier("fit", MODEL, *JOB, "--cluster", "3xcpu").stdout
        self.assertIn("fits: cpu:", said)
        self.assertIn("per iteration of 64 samples", said)
        self.assertIn("what binds:", said)
        found = self.fit("--cluster", "3xcpu", "--only-asked")
        self.assertTrue(found["fits"])
        self.assertEqual(found["changes"], [])
        total = sum(row["total_bytes"] for row in found["memory"])
        self.assertEqual(total, found["peak_bytes"])
        modules = {row["module"] for row in found["memory"]}
        self.assertTrue(any(module.startswith("image") for module in modules), modules)
        self.assertTrue(any((row["source"] or "").endswith(tuple("0123456789")) for row in found["memory"]))

    def test_its_plan_is_that_of_plan(self):
        budget = ["--budget", 500_000]
        found = self.fit("--cluster", "3xcpu", "--only-asked", *budget)
        self.espalier("plan", MODEL, *JOB, "--cluster", "3xcpu", "-o", "plan.json", *budget)
        judged = json.loads(self.espalier("simulate", "plan.json", "--json").stdout)
        self.assertEqual(found["iteration_ns"], judged["iteration_ns"])

    def test_what_does_not_fit_says_what_lacks(self):
        self.write("tiny.txt", TINY)
        done = self.espalier("fit", MODEL, *JOB, "--cluster", "tiny.txt", "--what-if", "*=+1MiB", "--only-asked", code=3)
        self.assertIn("does not fit: a lacks 2.00 KiB", done.stdout)
        self.assertIn("would do: --micro-batch 4", done.stdout)
        self.assertIn("*=+1MiB", done.stdout)
        found = self.fit("--cluster", "tiny.txt", "--what-if", "*=+1MiB", "--only-asked", code=3)
        self.assertFalse(found["fits"])
        self.assertGreater(found["changes"][0]["iteration_ns"], 0)

    def test_another_cluster(self):
        now = self.fit("--cluster", "3xcpu", "--what-if", "cpu:2=gone", "--what-if", "*=0.5x", "--what-if", "cpu:1=+1,links=2x",
                       "--only-asked")
        fewer, slower, more = (row["iteration_ns"] for row in now["changes"])
        self.assertGreaterEqual(fewer, now["iteration_ns"])
        self.assertGreater(slower, 1.5 * now["iteration_ns"])
        self.assertLessEqual(more, now["iteration_ns"])

    def test_a_change_that_means_nothing_is_refused_before_anything_is_planned(self):
        self.refused("fit", MODEL, *JOB, "--cluster", "3xcpu", "--what-if", "gpu:7=gone",
                     says="there is no device, group or kind 'gpu:7'; did you mean 'cpu:")  # fmt: skip


if __name__ == "__main__":
    if not BINARY:
        print("skipped: ESPALIER_BINARY is not set")
        sys.exit(77)
    unittest.main()
