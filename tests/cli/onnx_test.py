#!/usr/bin/env python3
"""ONNX files on the command line: planned, simulated, compared, and refused where something must run.

Standard library only. Skipped (77) where the program is not built.
"""

import json
import pathlib
import sys
import unittest

from command import BINARY, FIXTURES, Command

ONNX = FIXTURES / "onnx"
RUNTIME = BINARY and pathlib.Path(BINARY).with_name("espalier-runtime")


class Onnx(Command):
    def test_a_plan_remembers_the_open_sizes(self):
        model = ONNX / "bert_legacy.onnx"
        self.refused("plan", model, "-c", "2xV100-16GB", says=["leaves open how large 'tokens' (dimension 1 of input 'ids') is", "--dim tokens=128"])
        done = self.espalier("plan", model, "--dim", "tokens=48", "-c", "2xV100-16GB", "-b", "16", "-o", "plan.json")
        self.assertIn("the model has no loss output: it can be planned, not trained", done.stderr)
        plan = json.loads((self.folder / "plan.json").read_text())
        self.assertEqual(plan["training"]["dims"], {"tokens": "48"})
        simulated = self.espalier("simulate", "plan.json")
        self.assertIn("no plan", simulated.stdout)  # the bound, for which the model is read again
        again = self.espalier("plan", model, "--start", "plan.json", "-c", "2xV100-16GB", "-o", "again.json")
        self.assertIn("16 samples", again.stdout)

    def test_compare_fit_and_inspect_read_it(self):
        compared = self.espalier("compare", ONNX / "towers.onnx", "-c", "2xV100-16GB", "-b", "16", "-p", "graphpipe,even", "--json")
        self.assertEqual({row["planner"] for row in json.loads(compared.stdout)["rows"]}, {"graphpipe", "even"})
        self.assertIn("fits", self.espalier("fit", ONNX / "pictures.onnx", "-c", "2xV100-16GB", "-b", "16").stdout)
        inspected = self.espalier("inspect", ONNX / "towers_legacy.onnx").stdout
        self.assertIn("exported for 1 sample or more, eval mode; no loss output", inspected)

    def test_studies_and_policies_read_it(self):
        asked = ("-c", "2xV100-16GB", "-b", "16")
        study = ("orders", ONNX / "bert_legacy.onnx", *asked, "--placer", "list", "--orders", "alpha,topo_generations", "--seeds", "1")
        self.refused(*study, says="--dim tokens=128")
        self.assertIn("placer list", self.espalier(*study, "--dim", "tokens=48").stdout)
        if RUNTIME.exists():
            answer = self.espalier("learn", "apply", ONNX / "bert_legacy.onnx", *asked, "--dim", "tokens=48").stdout
            self.assertIn("policy, best of 32", answer)

    def test_frozen_parameters(self):
        whole = self.espalier("inspect", ONNX / "towers.onnx", "--json").stdout
        frozen = self.espalier("inspect", ONNX / "towers.onnx", "--freeze", "image.*", "--json").stdout
        self.assertNotEqual(whole, frozen)

    def test_what_must_run_is_refused(self):
        self.espalier("plan", ONNX / "towers.onnx", "-c", "local:2", "-b", "16", "--planner", "even", "-o", "plan.json")
        if RUNTIME.exists():
            self.refused("run", "plan.json", says="is no exported program (.pt2), so nothing can execute it")
            done = self.espalier("profile", ONNX / "towers.onnx", "--workers", "1", code=2)
            self.assertIn("is ONNX, which is planned and not executed; take the PyTorch model and export", done.stderr)
        self.refused("plan", ONNX / "towers.onnx", "--dim", "batch", says="--dim batch: expected NAME=SIZE, such as seq=128")
        self.refused("plan", ONNX / "towers.onnx", "--dim", "seq=0", says="--dim seq=0: expected NAME=SIZE")
        self.refused("plan", ONNX / "towers.onnx", "--dim", "seq=3", says=["--dim seq: no input has a size of that name", "open are batch"])
        self.refused("plan", FIXTURES / "two_tower.pt2", "--dim", "seq=3", says="--dim is for ONNX files")


if __name__ == "__main__":
    if not BINARY:
        print("ESPALIER_BINARY is not set: skipped")
        sys.exit(77)
    unittest.main()
