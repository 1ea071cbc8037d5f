#!/usr/bin/env python3
"""Verbs that compute, as a user meets them, on a tiny model: run with --json, --load and --save, profile, and diff with
a measured trace. Standard library only. Skipped (77) where the program is not built.
"""

import json
import math
import pathlib
import struct
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from command import BINARY, FIXTURES, Command  # noqa: E402

MODEL = str(FIXTURES / "gpt.pt2")
STANDS_STILL = ["--optimizer", "sgd", "--lr", "1e-30"]


def read_safetensors(path):
    """(bytes of each tensor by name, texts of the header)"""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    texts, data = header.pop("__metadata__", {}), content[8 + length :]
    return {name: data[slice(*entry["data_offsets"])] for name, entry in header.items()}, texts


class Run(Command):
    def plan(self, name, *arguments, devices=1, seed=5):
        self.espalier("plan", MODEL, "--cluster", f"local:{devices}", "--batch", 8, "--micro-batch", 2, "--seed", seed, "--planner",
                      "even" if devices > 1 else "single", "-o", name, *arguments)  # fmt: skip
        return name

    def run_json(self, *arguments):
        return json.loads(self.espalier("run", *arguments, "--json").stdout)

    def losses(self, *arguments):
        return [step["loss"] for step in self.run_json(*arguments)["steps"]]

    def test_json_of_a_run_has_every_step(self):
        found = self.run_json(self.plan("plan.json", devices=2), "--steps", 3)
        self.assertEqual((found["plan"], found["workers"]), ("plan.json", 2))
        self.assertEqual([step["step"] for step in found["steps"]], [0, 1, 2])
        for step in found["steps"]:
            self.assertEqual(step["samples"], 8)
            self.assertTrue(math.isfinite(step["loss"]) and step["gradient_norm"] > 0 and step["time_ns"] > 0, step)
        times = sorted(step["time_ns"] for step in found["steps"][1:])
        self.assertIn(found["median_ns"], times)
        self.assertAlmostEqual(found["error"], found["predicted_ns"] / found["median_ns"] - 1)

    def test_one_seed_gives_one_run_and_another_seed_another(self):
        plan = self.plan("plan.json")
        self.assertEqual(self.losses(plan, "--steps", 2), self.losses(plan, "--steps", 2))
        other = self.plan("other.json", seed=6)
        self.assertNotEqual(self.losses(plan, "--steps", 1), self.losses(other, "--steps", 1))

    def test_what_is_saved_is_what_the_next_run_starts_from(self):
        learns = self.plan("learns.json", "--optimizer", "sgd", "--lr", "0.5")
        self.espalier("run", learns, "--steps", 2, "--save", "two.safetensors")
        for devices in (1, 2):  # whatever plan goes on
            still = self.plan(f"still{devices}.json", *STANDS_STILL, devices=devices)
            self.espalier("run", still, "--steps", 1, "--load", "two.safetensors", "--save", "again.safetensors")
            self.assertEqual(*(read_safetensors(self.folder / f"{n}.safetensors")[0] for n in ("two", "again")))
            self.assertNotEqual(self.losses(still, "--steps", 1),
                                self.losses(still, "--steps", 1, "--load", "two.safetensors"))  # fmt: skip
        tensors, texts = read_safetensors(self.folder / "two.safetensors")
        self.assertEqual(texts["head.weight"], "embed.weight")  # tied
        self.assertNotIn("head.weight", tensors)

    def test_parameters_of_another_model_are_refused_by_name(self):
        plan = self.plan("plan.json")
        foreign = FIXTURES / "dlrm.expected.safetensors"
        done = self.espalier("run", plan, "--steps", 1, "--load", foreign, code=2)
        self.assertIn("dlrm.expected.safetensors", done.stderr)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)

    def test_a_run_learns_from_the_data_it_is_given(self):
        plan = self.plan("plan.json", "--optimizer", "sgd", "--lr", "0.5")
        row = struct.pack("<6q", *range(1, 7))
        data = row * 8
        header = {name: {"dtype": "I64", "shape": [8, 6], "data_offsets": [i * len(data), (i + 1) * len(data)]}
                  for i, name in enumerate(("labels", "tokens"))}  # fmt: skip
        text = json.dumps(header).encode()
        (self.folder / "data.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data * 2)
        losses = self.losses(plan, "--steps", 12, "--data", "data.safetensors")
        self.assertLess(losses[-1], 0.8 * losses[0])

    def test_a_profile_is_what_a_plan_then_uses(self):
        done = self.espalier("profile", MODEL, "--micro-batch", 2, "--rounds", 7, "--workers", 1, "-o", "costs.json", "--json")
        found = json.loads(done.stdout)
        costs = json.loads((self.folder / "costs.json").read_text())
        self.assertEqual((costs["format"], found["costs"]), ("espalier.costs/1", "costs.json"))
        self.assertEqual(found["rows"], len(costs["rows"]))
        self.assertEqual({p["origin"] for row in costs["rows"] for p in row["points"]}, {"measured"})
        self.assertGreater(found["backward_ns"], 0)
        plan = json.loads((self.folder / self.plan("plan.json", "--costs", "costs.json")).read_text())
        self.assertEqual(plan["costs"]["file"], "costs.json")
        self.assertFalse([note for note in plan["notes"] if "analytic" in note], plan["notes"])
        again = json.loads((self.folder / self.plan("unmeasured.json")).read_text())
        self.assertTrue([note for note in again["notes"] if "analytic" in note], again["notes"])

    def test_a_measured_trace_has_the_actions_of_its_plan(self):
        plan = self.plan("plan.json", devices=2)
        self.espalier("run", plan, "--steps", 2, "--trace", "measured.json", "--svg", "m.svg", "--chrome", "m.chrome.json")
        found = json.loads(self.espalier("diff", plan, "measured.json", "--json").stdout)
        self.assertEqual((found["a"]["origin"], found["b"]["origin"]), ("predicted", "measured"))
        self.assertGreater(found["b"]["iteration_ns"], 0)
        self.assertEqual(found["only_in_a"] + found["only_in_b"], [])
        counts = {(row["device"], row["action"]): row["count"] for row in found["actions"]}
        for device in ("cpu:0", "cpu:1"):
            self.assertEqual((counts[device, "F"], counts[device, "B"]), (4, 4))
        text = self.espalier("diff", plan, "measured.json", "--svg", "both.svg").stdout
        self.assertIn("iteration: predicted", text)
        for picture in ("m.svg", "both.svg"):
            self.assertTrue((self.folder / picture).read_text().startswith("<svg"))
        self.assertIn("traceEvents", json.loads((self.folder / "m.chrome.json").read_text()))

    def test_a_paced_run_needs_no_model_and_tells_simulated_and_measured(self):
        plan = self.plan("plan.json", "--schedule", "1f1b,split", devices=2)
        content = json.loads((self.folder / plan).read_text())
        content["model"] = "gone.pt2"
        (self.folder / plan).write_text(json.dumps(content))
        done = self.espalier("run", plan, "--paced", "--steps", 2, "--slower", 3, "--trace", "paced.json", "--json")
        found = json.loads(done.stdout)
        self.assertEqual((found["workers"], found["slower"], len(found["steps_ns"])), (2, 3, 2))
        self.assertAlmostEqual(found["error"], found["simulated_ns"] / found["median_ns"] - 1)
        compared = json.loads(self.espalier("diff", plan, "paced.json", "--json").stdout)
        self.assertEqual(compared["only_in_a"] + compared["only_in_b"], [])
        counts = {(row["device"], row["action"]): row["count"] for row in compared["actions"]}
        self.assertEqual([counts["cpu:1", letter] for letter in "FIW"], [4, 4, 4])
        for refused in (["--paced", "--data", "x.safetensors"], ["--slower", 2]):
            done = self.espalier("run", plan, *refused, code=2)
            self.assertIn("--paced", done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)


if __name__ == "__main__":
    if not BINARY:
        sys.exit(77)
    unittest.main()
