#!/usr/bin/env python3
"""The runtime on a GPU: every kind of plan is what one process computes there, a run is what the CPU's run is, its memory
is that of the GPU, and training goes from one to the other.

Standard library only. Skipped (77) where the program is not built or no GPU is there that its libtorch can use.
"""

import json
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from command import BINARY, FIXTURES, Command  # noqa: E402

MODELS = ["two_tower", "three_branch", "gpt", "gpt_bf16", "resnet", "dlrm", "unet", "gpt2", "llama", "mobile", "rotary", "rotary_f64",
          "spectral", "autocast"]  # fmt: skip


def a_gpu_is_there():
    look = "import torch; print(torch.cuda.device_count())"
    found = subprocess.run([os.environ["ESPALIER_PYTHON"], "-c", look], capture_output=True, text=True)
    return found.returncode == 0 and int(found.stdout) > 0


class Cuda(Command):
    def plan(self, name, model="gpt", devices=2, planner="even", schedule="1f1b", recipe=()):
        self.espalier("plan", FIXTURES / f"{model}.pt2", "--cluster", f"local:{devices}", "--batch", 8, "--micro-batch", 2, "--seed", 5,
                      "--planner", planner if devices > 1 else "single", "--schedule", schedule, "-o", name, *recipe)  # fmt: skip
        return name

    def printed(self, *arguments):
        return json.loads(self.espalier(*arguments, "--json").stdout)

    def test_every_model_is_what_one_process_computes_there(self):
        for model in MODELS:
            for planner, schedule in (("even", "1f1b"), ("even", "1f1b,split"), ("m-etf", "gpipe")):
                with self.subTest(model=model, planner=planner, schedule=schedule):
                    plan = self.plan("plan.json", model, planner=planner, schedule=schedule)
                    self.assertTrue(self.printed("verify", plan, "--device", "cuda", "--steps", 2)["equal"])

    def test_a_run_there_is_a_run_here(self):
        plan = self.plan("plan.json")
        there, here = (self.printed("run", plan, "--steps", 3, "--device", device) for device in ("cuda", "cpu"))
        for a, b in zip(there["steps"], here["steps"]):
            # Dropout draws other numbers there.
            self.assertAlmostEqual(a["loss"], b["loss"], delta=0.2 * abs(b["loss"]))

    def test_training_goes_from_one_to_the_other(self):
        recipe = ["--optimizer", "adamw", "--lr", "0.01", "--clip-norm", "0.5"]
        plan = self.plan("plan.json", "resnet", recipe=recipe)  # without dropout

        def train(steps, folder, *arguments):
            found = self.printed("run", plan, "--steps", steps, "--checkpoints", folder, *arguments)
            return [step["loss"] for step in found["steps"]]

        whole = train(6, "whole", "--device", "cpu")
        parts = train(2, "a", "--device", "cuda") + train(4, "b", "--device", "cpu", "--resume", "a")
        parts += train(6, "c", "--device", "cuda", "--resume", "b")
        for a, b in zip(parts, whole):
            self.assertAlmostEqual(a, b, delta=1e-2 * abs(b))

    def test_memory_and_profile_are_those_of_the_gpu(self):
        done = self.espalier("profile", FIXTURES / "gpt.pt2", "--micro-batch", 2, "--rounds", 7, "--workers", 1, "-o", "costs.json",
                             "--json")  # fmt: skip
        self.assertGreater(json.loads(done.stdout)["backward_ns"], 0)
        rows = json.loads((self.folder / "costs.json").read_text())["rows"]
        self.assertEqual({point["origin"] for row in rows for point in row["points"]}, {"measured"})
        (kind,) = {row["kind"] for row in rows}
        self.assertNotEqual(kind, "cpu")
        devices = [f"device gpu:{i} {kind} in host" for i in (0, 1)]
        self.write("cluster.txt", "\n".join([f"kind {kind} 16GiB f32=15.7e12 f16=125e12 mem=900GB launch=5us sms=80",
                                             "group host 300GB latency=5us", *devices]))  # fmt: skip
        self.espalier("plan", FIXTURES / "gpt.pt2", "--cluster", "cluster.txt", "--costs", "costs.json", "--batch", 8, "--micro-batch", 2,
                      "--planner", "even", "-o", "plan.json")  # fmt: skip
        done = self.espalier("run", "plan.json", "--steps", 2, "--trace", "trace.json")
        self.assertNotIn("runs on", done.stderr)
        trace = json.loads((self.folder / "trace.json").read_text())
        for device in (0, 1):
            held = [sample["held"] for sample in trace["memory"] if sample["device"] == device]
            self.assertGreater(max(row[-1] for row in held), 0, "activations")


if __name__ == "__main__":
    if not BINARY or not a_gpu_is_there():
        sys.exit(77)
    unittest.main()
