#!/usr/bin/env python3
"""Several implementations of an operator, as a user meets them: cost files, what `plan` and `fit` say, plan files.

Standard library only. Skipped (77) where the program is not built.
"""

import json
import sys
import unittest

from command import BINARY, Command

MODEL = """batch 1..8
x = input() : f32[b,4]
w = parameter(body.weight) : f32[4,4]
body = linear(x, w) : f32[b,4] @module=body @class=body
loss = mean(body) : f32[] @module=head @class=mean
"""
COSTS = """cost body T4 batch=1 f=2ms i=2ms w=2ms private=9GiB by=winograd
cost body T4 batch=1 f=3ms i=3ms w=3ms by=gemm
cost mean T4 batch=1 f=1ms
"""


class Implementations(Command):
    def setUp(self):
        super().setUp()
        self.write("model.txt", MODEL)
        self.write("costs.txt", COSTS)
        self.job = ["model.txt", "--costs", "costs.txt", "-b", 2, "-m", 1]

    def test_the_fastest_counts_and_is_named(self):
        done = self.espalier("plan", *self.job, "-c", "1xT4", "-p", "single", "-o", "plan.json")
        self.assertIn("by winograd on T4: 1 operator, first body\n", done.stdout)
        named = [{"kind": "T4", "name": "winograd", "operators": ["body"]}]
        self.assertEqual(json.loads((self.folder / "plan.json").read_text())["implementations"], named)
        told = json.loads(self.espalier("plan", *self.job, "-c", "1xT4", "-p", "single", "-o", "plan.json", "--json").stdout)
        self.assertEqual(told["implementations"], named)
        self.espalier("simulate", "plan.json")

    def test_a_lighter_one_is_taken_where_nothing_fits(self):
        self.write("small.txt", "kind T4 4GiB preset=T4\ngroup host 16GB latency=10us\ndevice gpu:0 T4 in host\n")
        done = self.espalier("plan", *self.job, "-c", "small.txt", "-p", "single", "-o", "plan.json")
        self.assertIn("nothing fits with the fastest implementation of each operator: 1 operator takes a lighter one, 9.00 GiB less",
                      done.stdout)  # fmt: skip
        self.assertIn("by gemm on T4: 1 operator, first body\n", done.stdout)
        self.assertIn("fits: gpu:0", self.espalier("fit", *self.job, "-c", "small.txt", "-p", "single").stdout)

    def test_a_name_that_would_not_read_back_is_refused(self):
        self.write("costs.txt", COSTS.replace("winograd", "a/b"))
        self.refused("plan", *self.job, "-c", "1xT4", says=["costs.txt", "by 'a/b'", "letters, digits, '.', '_' and '-' alone"])


if __name__ == "__main__":
    if not BINARY:
        sys.exit(77)
    unittest.main()
