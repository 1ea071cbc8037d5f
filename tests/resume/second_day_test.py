#!/usr/bin/env python3
"""Training that is killed goes on: every process by SIGKILL, then the same training under another plan and number of workers.
And the flags around it: what is refused, what is logged.

Standard library only. Skipped (77) where the program is not built.
"""

import json
import os
import struct
import subprocess
import sys
import unittest

from training import BINARY, FIXTURES, RECIPE, ROOT, Training, content_of, steps_of, tensors, write_tensors

PYTHON = os.environ.get("ESPALIER_PYTHON", str(ROOT / ".venv/bin/python"))

# A model whose evaluation differs from its training, its file, samples, and PyTorch's own evaluation of them.
EVALUATED_BY_TORCH = """
import sys, torch
import torch.nn.functional as F
sys.path[:0] = [sys.argv[1] + "/python"]
import espalier_export
from safetensors.torch import save_file
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 4))
with torch.no_grad():
    model[1].running_mean.uniform_(-1, 1)
    model[1].running_var.uniform_(0.5, 2)
x, label = torch.randn(37, 6), torch.randint(4, (37,))
espalier_export.export(model, (x[:4],), sys.argv[2] + "/torch.pt2", loss="cross_entropy", targets={"label": label[:4]},
                       outputs=["output"])
save_file({"input": x, "label": label}, sys.argv[2] + "/samples.safetensors")
with torch.no_grad():
    output = model.eval()(x)
    print(F.cross_entropy(output, label).item(), output.mean().item())
"""


class SecondDay(Training):
    def test_killed_everywhere_and_resumed_under_another_plan(self):
        two, three = self.plan("two.json", 2), self.plan("three.json", 3)
        self.espalier("run", two, "--steps", 9, "--checkpoints", "whole", "--log", "whole.jsonl", "--save", "whole.safetensors")
        expected = steps_of(self.folder / "whole.jsonl")
        self.assertEqual(sorted(expected), list(range(1, 10)))
        self.assertEqual(expected[1][2], 0)  # warm-up
        self.assertAlmostEqual(expected[2][2], 0.005)

        def has_two_checkpoints(seen):
            return sum(row["event"] == "checkpoint" for row in seen) == 2
        self.kill_after(has_two_checkpoints, two, "--steps", 10**9, "--checkpoints", "killed", "--save-every", 2,
                        "--schedule-steps", 9)
        for plan, workers in ((two, 2), (three, 3), (three, 2), (three, 1)):
            name = f"{plan}-{workers}"
            self.espalier("run", plan, "--workers", workers, "--steps", 9, "--resume", "killed/step-00000004",
                          "--checkpoints", name, "--log", f"{name}.jsonl", "--save", f"{name}.safetensors")
            rest = steps_of(self.folder / f"{name}.jsonl")
            self.assertEqual(rest, {step: row for step, row in expected.items() if step > 4}, name)
            self.assertEqual(content_of(self.folder / name / "step-00000009"), content_of(self.folder / "whole/step-00000009"))
            self.assertEqual((self.folder / f"{name}.safetensors").read_bytes(), (self.folder / "whole.safetensors").read_bytes())
            manifest = json.loads((self.folder / name / "step-00000009/checkpoint.json").read_text())
            self.assertEqual(len(manifest["shards"]), workers)
            names = [set(tensors(self.folder / name / "step-00000009" / shard["file"])) for shard in manifest["shards"]]
            self.assertTrue(all(names))  # every worker wrote what it owns, and nobody what another owns
            self.assertEqual(len(set.union(*names)), sum(map(len, names)))

    def test_killed_at_random_moments_while_it_writes_checkpoints(self):
        self.kill_at_random_moments(2)  # kills_long_test.py: fifty

    def test_weights_of_the_hub_are_matched_converted_and_missed_by_name(self):
        plan = self.plan("one.json", 1, recipe=["--batch", "8", "--micro-batch", "2", "--lr", "0"])
        self.espalier("run", plan, "--steps", 1, "--save", "own.safetensors")
        own = tensors(self.folder / "own.safetensors")
        hub = {f"model.{name}": row for name, row in own.items()}
        names = sorted(hub)
        half = len(names) // 2
        hub_folder = self.folder / "hub"
        hub_folder.mkdir()
        weight_map = {}
        for file, part in (("model-1.safetensors", names[:half]), ("model-2.safetensors", names[half:])):
            write_tensors(hub_folder / file, {name: hub[name] for name in part} | ({"head.extra": ("F32", (1,), bytes(4))}
                                                                                 if file == "model-2.safetensors" else {}))
            weight_map |= {name: file for name in part}
        weight_map["head.extra"] = "model-2.safetensors"
        (hub_folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        done = self.espalier("run", plan, "--steps", 1, "--load", "hub", "--save", "loaded.safetensors")
        self.assertIn("have a further 'model.' in front", done.stderr)
        self.assertIn("the model has not: head.extra", done.stderr)
        self.assertEqual(tensors(self.folder / "loaded.safetensors"), own)

        lacking = dict(own)
        del lacking[names[0].removeprefix("model.")]
        write_tensors(self.folder / "lacking.safetensors", lacking)
        self.refused("run", plan, "--steps", 1, "--load", "lacking.safetensors",
                     says=["lacks 1 of the model's tensors", names[0].removeprefix("model."), "--load-partial"])
        done = self.espalier("run", plan, "--steps", 1, "--load", "lacking.safetensors", "--load-partial")
        self.assertIn("the model's values are taken", done.stderr)

        double = {name: ("F64", shape, struct.pack(f"<{len(data) // 4}d", *struct.unpack(f"<{len(data) // 4}f", data)))
                  if dtype == "F32" else (dtype, shape, data) for name, (dtype, shape, data) in own.items()}
        write_tensors(self.folder / "double.safetensors", double)
        done = self.espalier("run", plan, "--steps", 1, "--load", "double.safetensors", "--save", "loaded.safetensors")
        self.assertIn("converted from Double to Float", done.stderr)
        self.assertEqual(tensors(self.folder / "loaded.safetensors"), own)

    def test_frozen_parameters_stay_and_cost_no_backward(self):
        recipe = ["--batch", "8", "--micro-batch", "2", "--lr", "0.1", "--optimizer", "sgd"]
        free, frozen = self.plan("free.json", 1, recipe=recipe), self.plan("frozen.json", 1, recipe=[*recipe, "--freeze", "image.*"])
        for plan in (free, frozen):
            self.espalier("run", plan, "--steps", 2, "--save", f"{plan}.safetensors")
        self.espalier("run", free, "--steps", 1, "--lr", 0, "--save", "start.safetensors")
        start, moved = tensors(self.folder / "start.safetensors"), tensors(self.folder / f"{frozen}.safetensors")
        changed = {name for name in start if start[name] != moved[name]}
        self.assertTrue(changed)
        self.assertFalse([name for name in changed if name.startswith("image.")])
        time_of = [json.loads(self.espalier("simulate", plan, "--json").stdout)["iteration_ns"] for plan in (free, frozen)]
        self.assertLess(time_of[1], time_of[0])
        self.espalier("verify", frozen)
        self.refused("plan", FIXTURES / "three_branch.pt2", "--freeze", "imaeg.*", says=["--freeze 'imaeg.*'", "matches no parameter"])
        self.refused("plan", FIXTURES / "three_branch.pt2", "--no-decay", "*.bais", says=["--no-decay '*.bais'"])

    def test_dropped_samples_are_told_and_epochs_counted(self):
        plan = self.plan("one.json", 1, model="gpt", recipe=["--batch", "4", "--micro-batch", "2"])
        fixture = tensors(FIXTURES / "gpt.expected.safetensors")
        data = {}
        for name, (dtype, shape, content) in fixture.items():
            if name.startswith("input."):
                row = len(content) // shape[0]
                data[name.removeprefix("input.")] = (dtype, (11, *shape[1:]), content[:row] * 11)
        write_tensors(self.folder / "data.safetensors", data)
        done = self.espalier("run", plan, "--steps", 5, "--data", "data.safetensors", "--log", "log.jsonl")
        self.assertIn("3 samples of each epoch do not fill a batch", done.stderr)
        epochs = [json.loads(line).get("epoch") for line in (self.folder / "log.jsonl").read_text().splitlines()
                  if json.loads(line)["event"] == "step"]
        self.assertEqual(epochs, [0, 0, 1, 1, 2])
        self.assertIn("step 3/5  epoch 2", done.stdout)

    def test_an_evaluation_is_pytorchs_own_whatever_mode_the_export_had(self):
        known = subprocess.run([PYTHON, "-c", EVALUATED_BY_TORCH, str(ROOT), str(self.folder)], capture_output=True, text=True)
        self.assertEqual(known.returncode, 0, known.stderr)
        self.espalier("plan", "torch.pt2", "--cluster", "local:2", "--planner", "even", "--batch", 8, "--micro-batch", 4, "--lr", 0,
                      "-o", "plan.json")
        # 37 samples: four batches of 8, a micro-batch of 4, and one that is left, which the model does not take alone.
        done = self.espalier("run", "plan.json", "--steps", 2, "--evaluation-data", "samples.safetensors", "--evaluate-every", 2,
                             "--log", "log.jsonl")
        rows = [row for row in map(json.loads, (self.folder / "log.jsonl").read_text().splitlines()) if row["event"] == "evaluation"]
        self.assertEqual([(row["step"], row["samples"], row["left_out"]) for row in rows], [(0, 37, 0), (2, 37, 0)])
        loss, output = map(float, known.stdout.split())
        self.assertAlmostEqual(rows[0]["loss"], loss, places=5)
        self.assertEqual(list(rows[0]["outputs"]), ["output"])
        self.assertAlmostEqual(rows[0]["outputs"]["output"], output, places=5)
        # The learning rate is 0, but two steps moved the running statistics.
        self.assertNotAlmostEqual(rows[1]["loss"], rows[0]["loss"], places=4)
        self.assertIn("step 2: loss ", done.stdout)

    def test_flags_that_do_not_fit_are_refused_before_any_worker_starts(self):
        plan = self.plan("two.json", 2)
        self.refused("run", plan, "--save-every", 3, says=["--checkpoints"])
        self.refused("run", plan, "--load", "a", "--resume", "b", says=["--resume and --load"])
        self.refused("run", plan, "--resume", "nothing", says=["nothing", "no complete checkpoint"])
        self.refused("run", plan, "--lr-schedule", "cosin", says=["constant, linear or cosine"])


if __name__ == "__main__":
    if not BINARY:
        sys.exit(77)
    unittest.main()
