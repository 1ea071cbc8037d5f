#!/usr/bin/env python3
"""One process, and plans of several, against PyTorch itself on this machine: every fixture, every optimizer.

    parity.py [quick|more|all] [Parity.test_…]

PyTorch and Espalier compute here, with the same library, processor and number of threads. So one process must have
PyTorch's losses and gradients to the bit; the fixtures' stored numbers (espalier/runtime/executor_test.cc) cannot be
compared so, for another processor rounds otherwise. Needs a Python with torch, and ESPALIER_BINARY; skipped (77)
where one is missing. `quick` takes one optimizer for each fixture in turn, `more` three, `all` each.
"""

import contextlib
import io
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("ESPALIER_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BINARY = os.environ.get("ESPALIER_BINARY")
# All that can be computed: one has no weights.
FIXTURES = {path.stem: path for path in sorted((ROOT / "tests/fixtures").glob("*.pt2")) if path.stem != "weightless"}
STEPS = 3
# Optimizers as a plan file has them, beside their defaults.
OPTIMIZERS = {
    "sgd": {"kind": "sgd", "learning_rate": 0.05},
    "momentum": {"kind": "sgd", "learning_rate": 0.02, "momentum": 0.9, "weight_decay": 0.1},
    "adam": {"kind": "adam"},
    "adam_decay": {"kind": "adam", "weight_decay": 0.1},
    "clipped": {"kind": "adam", "clip_norm": 0.1},
    "cosine": {"kind": "adamw", "weight_decay": 0.1, "no_decay": ["*bias", "embed.*"],
               "schedule": {"shape": "cosine", "warm_up": 1, "steps": 4}},
    "linear": {"kind": "sgd", "learning_rate": 0.05, "momentum": 0.9, "clip_norm": 0.2,
               "schedule": {"shape": "linear", "warm_up": 0, "steps": 0}},
    "adamw": {"kind": "adamw", "learning_rate": 0.003, "beta1": 0.8, "beta2": 0.99, "weight_decay": 0.1},
}
EXTENT = sys.argv[1] if len(sys.argv) > 1 else "all"
QUICK = EXTENT == "quick"

sys.path.insert(0, str(ROOT / "python"))
try:
    import torch

    import espalier_parity as parity
except ImportError:
    torch = None


def espalier(*arguments, **more):
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    return subprocess.run([BINARY, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=300,
                          **more)  # fmt: skip


def cases():
    """(fixture, names of optimizers): all, or one or three for each fixture in turn."""
    names = list(OPTIMIZERS)
    taken = {"quick": [0], "more": [0, 3, 6], "all": range(len(names))}[EXTENT]
    return [(fixture, [names[(i + more) % len(names)] for more in taken]) for i, fixture in enumerate(FIXTURES)]


class Parity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        for name, path in FIXTURES.items():
            (cls.folder / path.name).symlink_to(path)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def plan(self, fixture, *arguments, **optimizer):
        """A plan of four micro-batches of two samples (or of the exported size), with this optimizer."""
        size = 4 if fixture.endswith("_fixed") else 2
        path = self.folder / f"{fixture}.{len(list(self.folder.iterdir()))}.json"
        done = espalier("plan", self.folder / f"{fixture}.pt2", "--batch", 4 * size, "--micro-batch", size, "--seed", 11,
                        "-o", path, *arguments)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return self.change(path, **optimizer)

    def change(self, plan, **optimizer):
        """The plan file, with these settings of the optimizer."""
        content = json.loads(plan.read_text())
        content["training"]["optimizer"].update(optimizer)
        changed = plan.with_suffix(f".{len(list(self.folder.iterdir()))}.json")
        changed.write_text(json.dumps(content))
        return changed

    def record(self, plan, *arguments):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        done = espalier("run", plan, "--steps", STEPS, "--record", folder, *arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return folder

    def check(self, plan, *arguments):
        report = parity.check_run(parity.read_plan(plan), self.record(plan, *arguments))
        self.assertTrue(report.equal, parity.verdict(report, 1e-5))
        self.assertEqual(len(report.steps), STEPS)
        return report

    def command(self, *arguments):
        """What python/espalier_parity.py does with these arguments: exit code, standard output, standard error."""
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error:
            code = parity.main(["--espalier", BINARY, *map(str, arguments)])
        return code, out.getvalue(), error.getvalue()

    def test_one_process_is_pytorch_to_the_bit(self):
        for fixture, optimizers in cases():
            plan = self.plan(fixture, "--planner", "single", "--cluster", "local:1")
            for optimizer in optimizers:
                with self.subTest(fixture=fixture, optimizer=optimizer):
                    report = self.check(self.change(plan, **OPTIMIZERS[optimizer]))
                    if "clip_norm" not in OPTIMIZERS[optimizer]:  # PyTorch's factor is a float, ours a double
                        self.assertTrue(report.forward_backward_bits, report.steps)
                    for step in report.steps:
                        self.assertTrue(math.isclose(step.loss, step.alone_loss, rel_tol=1e-4), "PyTorch by itself")

    def test_two_processes_are_pytorch(self):
        for fixture in ["gpt"] if QUICK else FIXTURES:
            with self.subTest(fixture=fixture):
                self.check(self.plan(fixture, "--planner", "even", "--cluster", "local:2", **OPTIMIZERS["adam_decay"]))

    def test_frozen_parameters_stay(self):
        plan = self.plan("gpt", "--planner", "even", "--cluster", "local:2", "--freeze", "embed.*", **OPTIMIZERS["cosine"])
        report = self.check(plan)
        whole = self.check(self.plan("gpt", "--planner", "even", "--cluster", "local:2"))
        self.assertLess(report.gradients, whole.gradients)
        self.assertEqual(report.parameters, whole.parameters)

    def test_the_command_says_what_it_compared_and_finds_a_wrong_learning_rate(self):
        plan = self.plan("resnet", "--planner", "even", "--cluster", "local:2", **OPTIMIZERS["adamw"])
        code, out, error = self.command(plan)
        self.assertEqual((code, error), (0, ""), out)
        self.assertIn(f"equal to PyTorch {torch.__version__}, torch.optim.AdamW, one process: loss, ", out)
        self.assertEqual(out.count("\n"), STEPS + 2, out)
        right = self.plan("gpt", "--planner", "even", "--cluster", "local:2", **OPTIMIZERS["sgd"])
        record, wrong = self.record(right), self.change(right, learning_rate=0.0505)
        code, out, error = self.command(wrong, "--record", record)
        self.assertEqual((code, error), (1, ""), out)
        self.assertIn("first: step 1, parameter ", out)
        code, out, error = self.command(wrong, "--record", record, "--json")
        found = json.loads(out)
        self.assertEqual((code, found["equal"]), (1, False))
        self.assertEqual({d["what"] for d in found["differences"]}, {"parameter"})

    def test_the_command_refuses_in_one_line(self):
        plan = self.plan("dlrm", "--planner", "single", "--cluster", "local:1")
        for arguments, says in (([self.folder / "gone.json"], "gone.json"), ([plan, "--record", self.folder], "no record"),
                                ([plan, "--steps", 0], "above 0"), ([plan, "--data", "gone.safetensors"], "ended with 2")):  # fmt: skip
            code, out, error = self.command(*arguments)
            self.assertEqual((code, out), (2, ""), error)
            self.assertIn(says, error)


if __name__ == "__main__":
    if not BINARY or torch is None:
        sys.exit(77)
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
