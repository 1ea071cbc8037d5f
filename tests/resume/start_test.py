#!/usr/bin/env python3
"""What training starts from and what it can leave behind: weights for a model that was made without them, and types that no
file of tensors has. Standard library only; the models are made by the Python that has torch.
"""

import os
import subprocess
import sys
import unittest

from training import BINARY, ROOT, Command

PYTHON = os.environ.get("ESPALIER_PYTHON", str(ROOT / ".venv/bin/python"))

# One model twice, with its weights and without; its weights; a model with a number type of its own.
MODELS = """
import sys, torch
sys.path[:0] = [sys.argv[1] + "/python"]
import espalier_export
from safetensors.torch import save_file


def model():
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))


class Double(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = torch.nn.Parameter(torch.randn(6, 4, dtype=torch.complex128))

    def forward(self, x):
        return (x.to(torch.complex128) @ self.turn).abs().sum(-1).float()


torch.manual_seed(3)
full = model()
with torch.device("meta"):
    empty = model()
x, label = torch.randn(4, 6), torch.randint(4, (4,))
for name, one in (("full", full), ("empty", empty)):
    espalier_export.export(one, (x,), name + ".pt2", loss="cross_entropy", targets={"label": label})
save_file(full.state_dict(), "weights.safetensors")
save_file({name: value for name, value in full.state_dict().items() if name != "2.bias"}, "some.safetensors")
espalier_export.export(Double(), (x,), "double.pt2", loss="mse_loss", targets={"target": torch.randn(4)})
"""


class Start(Command):
    def setUp(self):
        super().setUp()
        made = subprocess.run([PYTHON, "-c", MODELS, str(ROOT)], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(made.returncode, 0, made.stderr)

    def plan(self, model, workers):
        self.espalier("plan", f"{model}.pt2", "--cluster", f"local:{workers}", "--planner", "even", "--batch", "8",
                      "--micro-batch", "4", "-o", f"{model}.json")  # fmt: skip
        return f"{model}.json"

    def test_a_model_without_weights_trains_from_a_file_of_them(self):
        for model in ("full", "empty"):
            self.espalier("run", self.plan(model, 2), "--steps", "2", "--load", "weights.safetensors", "--save",
                          f"{model}.safetensors")  # fmt: skip
        saved = [(self.folder / f"{model}.safetensors").read_bytes() for model in ("full", "empty")]
        self.assertEqual(*saved)
        self.espalier("run", "empty.json", "--steps", "2", "--load", "weights.safetensors", "--checkpoints", "days")
        self.espalier("run", "empty.json", "--steps", "3", "--resume", "days")

    def test_values_that_nothing_holds_are_named(self):
        self.plan("empty", 2)
        done = self.espalier("run", "empty.json", "--steps", "2", code=2)
        self.assertEqual(done.stderr.count("holds no weights"), 1, done.stderr)
        done = self.espalier("run", "empty.json", "--load", "some.safetensors", "--load-partial", code=2)
        self.assertIn("holds no values of 1 of its tensors", done.stderr)
        self.assertIn("2.bias", done.stderr)

    def test_a_type_that_cannot_be_saved_is_refused_before_the_first_step(self):
        plan = self.plan("double", 1)
        self.espalier("run", plan, "--steps", "1")
        for flag in (["--save", "out.safetensors"], ["--checkpoints", "days"]):
            done = self.espalier("run", plan, "--steps", "1", *flag, code=2)
            self.assertIn("'turn' has type ComplexDouble, which safetensors files do not have", done.stderr)
            self.assertNotIn("step 1", done.stdout)


if __name__ == "__main__":
    if not BINARY:
        sys.exit(77)
    unittest.main()
