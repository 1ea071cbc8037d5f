#!/usr/bin/env python3
"""Placements that run, as a user meets them: trained beside their prediction, verified, traced, paced, resumed from a plan
of stages and back, refused in one line.

Standard library only. Skipped (77) where the program is not built.
"""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from command import BINARY, FIXTURES, Command, action_counts  # noqa: E402

MODEL = str(FIXTURES / "gpt.pt2")
RULES = '{"blocks.0*": "cpu:1", "*": "cpu:0"}'  # cpu:0 has what comes before and behind, with the tied weight


class PlacedRun(Command):
    def place(self, name="placed.json", *arguments, model=MODEL, rules=RULES, devices=2, batch=8):
        self.write("rules.json", rules)
        self.espalier("plan", model, "--cluster", f"local:{devices}", "--batch", batch, "--seed", 5, "--placement", "rules.json",
                      "-o", name, *arguments)  # fmt: skip
        return name

    def stages(self, name="stages.json", *arguments):
        self.espalier("plan", MODEL, "--cluster", "local:2", "--batch", 8, "--seed", 5, "--planner", "even", "-o", name, *arguments)
        return name

    def printed(self, *arguments):
        return json.loads(self.espalier(*arguments, "--json").stdout)

    def assert_close(self, found, expected):
        self.assertEqual(len(found), len(expected))
        for a, b in zip(found, expected):
            self.assertAlmostEqual(a, b, delta=1e-4 * abs(b))

    def test_a_placement_runs_beside_its_prediction(self):
        plan = self.place()
        found = self.printed("run", plan, "--steps", 3, "--trace", "measured.json")
        self.assertEqual((found["plan"], found["workers"], len(found["steps"])), (plan, 2, 3))
        self.assertEqual(found["predicted_ns"] > 0, True)
        self.assertAlmostEqual(found["error"], found["predicted_ns"] / found["median_ns"] - 1)
        alone = self.printed("run", self.place("alone.json", rules='{"*": "cpu:0"}', devices=1), "--steps", 3)
        self.assertEqual(alone["workers"], 1)
        self.assert_close([step["loss"] for step in found["steps"]], [step["loss"] for step in alone["steps"]])

        compared = self.printed("diff", plan, "measured.json")
        self.assertEqual((compared["a"]["origin"], compared["b"]["origin"]), ("predicted", "measured"))
        self.assertEqual(compared["only_in_a"] + compared["only_in_b"], [])
        counts = action_counts(compared)
        self.assertEqual([counts["cpu:0", letter] for letter in "FB"], [2, 2])  # its fragments
        self.assertEqual([counts["cpu:1", letter] for letter in "FB"], [1, 1])
        self.assertIn("iteration: predicted", self.espalier("diff", plan, "measured.json").stdout)

    def test_it_is_verified_in_one_micro_batch_and_in_several(self):
        found = self.printed("verify", self.place(), "--steps", 2)
        self.assertTrue(found["equal"] and found["bit_equal"] and found["bit_equality_due"], found)
        several = self.place("several.json", "--micro-batch", 2)
        found = self.printed("verify", several, "--steps", 2, "--schedule", "gpipe,split")
        self.assertTrue(found["equal"], found)
        self.assertFalse(found["bit_equality_due"])
        found = self.printed("verify", several, "--workers", 1)  # both devices in one process
        self.assertTrue(found["equal"], found)

    def test_a_paced_run_takes_its_times(self):
        plan = self.place()
        found = self.printed("run", plan, "--paced", "--steps", 2, "--slower", 3, "--trace", "paced.json")
        self.assertEqual((found["workers"], len(found["steps_ns"])), (2, 2))
        compared = self.printed("diff", plan, "paced.json")
        self.assertEqual(compared["only_in_a"] + compared["only_in_b"], [])

    def test_training_goes_on_under_a_placement_and_back_under_stages(self):
        recipe = ["--micro-batch", 2, "--optimizer", "adamw", "--lr", "0.01", "--clip-norm", "0.5"]
        placed, stages = self.place("placed.json", *recipe), self.stages("stages.json", *recipe)

        def train(plan, steps, folder, *arguments):
            found = self.printed("run", plan, "--steps", steps, "--schedule-steps", 6, "--checkpoints", folder, *arguments)
            return [(step["loss"], step["gradient_norm"]) for step in found["steps"]]

        expected = train(stages, 6, "whole")
        parts = train(stages, 2, "stages") + train(placed, 4, "placed", "--resume", "stages")
        parts += train(stages, 6, "again", "--resume", "placed")
        for i in (0, 1):
            self.assert_close([step[i] for step in parts], [step[i] for step in expected])

        def names(folder):
            manifest = json.loads(next((self.folder / folder).glob("step-*/checkpoint.json")).read_text())
            return sorted(row["name"] for row in manifest["variables"])

        self.assertEqual(names("placed"), names("whole"))

    def test_it_is_evaluated_as_any_plan(self):
        header, size = {}, 8 * 6 * 8
        for i, name in enumerate(("labels", "tokens")):
            header[name] = {"dtype": "I64", "shape": [8, 6], "data_offsets": [i * size, (i + 1) * size]}
        text = json.dumps(header).encode()
        content = len(text).to_bytes(8, "little") + text + b"".join((n % 7).to_bytes(8, "little") for n in range(8 * 6 * 2))
        (self.folder / "data.safetensors").write_bytes(content)
        losses = []
        for plan in (self.place("placed.json", "--micro-batch", 2), self.stages("stages.json", "--micro-batch", 2)):
            found = self.printed("run", plan, "--steps", 1, "--evaluation-data", "data.safetensors")
            losses.append(found["evaluations"][-1]["loss"])
        self.assertAlmostEqual(losses[0], losses[1], places=4)

    def test_what_cannot_run_is_refused_in_one_line(self):
        self.espalier("zoo", "rnnlm", "--length", 2, "--hidden", 8, "--vocabulary", 8, "--training", "-o", "training.json")
        self.place("training_plan.json", model="training.json", rules='{"*": "cpu:0"}', devices=1)
        self.espalier("simulate", "training_plan.json")
        for verb in ("run", "verify"):
            self.refused(verb, "training_plan.json", says=["training_plan.json: its model, training.json, is no exported program",
                                                           "simulate"])
        plan = json.loads((self.folder / self.place()).read_text())
        plan["placement"]["devices"][0]["device"] = "cpu:1"
        self.write("edited.json", json.dumps(plan))
        self.refused("run", "edited.json", says=["edited.json: placement", "was edited since"])


if __name__ == "__main__":
    if not BINARY:
        sys.exit(77)
    unittest.main()
