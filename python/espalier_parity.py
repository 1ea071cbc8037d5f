"""Checks a plan's training against PyTorch itself.

    python python/espalier_parity.py plan.json --steps 3

`espalier verify` compares a plan with one process of the same runtime: what both do wrong alike it cannot see. This
command trains the plan for some steps (`espalier run --record`), and then computes each step in PyTorch from the same
.pt2 file, batch, seed and state: torch.export's own reader, autograd, torch.optim, torch.nn.utils.clip_grad_norm_ and
LambdaLR. It shares no code with Espalier.

Each step is checked by itself. PyTorch starts from the parameters that the run had before the step, so a difference
cannot grow over the steps, and what each step does is checked to a rounding:

    loss, gradient norm   |difference| / |PyTorch's|                                     at most 1e-5
    gradients, clipped    |difference| / max(|PyTorch's|, 1e-3 |all gradients|)          at most 1e-5
    parameters, buffers   the same measure of the way that they went in this step, where torch.optim takes the run's own
                          gradients, and beyond what rounding the parameter itself explains

For types of less precision than float32, 1e-5 stands for eight roundings. Beside it PyTorch trains by itself from the
beginning, for the eye. Ends with 0 where all is equal, 1 where something differs, 2 where the input is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

import espalier_reference as reference

TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "C64": torch.complex64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "U16": torch.uint16, "U32": torch.uint32,
}  # fmt: skip


class ParityError(Exception):
    """Wrong input, in one line."""


def read_header(path: Path) -> tuple[dict, dict[str, str], int]:
    """The entries of a safetensors file, its texts, and where its data begins."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return header, header.pop("__metadata__", {}), 8 + length


def read_safetensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors by name, and the texts of the header."""
    header, texts, start = read_header(path)
    content, tensors = path.read_bytes(), {}
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        tensors[name] = torch.empty(entry["shape"], dtype=TYPES[entry["dtype"]])
        if begin < end:
            flat = torch.frombuffer(bytearray(content[begin:end]), dtype=tensors[name].dtype)
            tensors[name].copy_(flat.view(entry["shape"]))
    return tensors, texts


@dataclass
class Plan:
    """What a plan file says about training; how it is cut matters for the buffers of replicas alone."""

    path: Path
    model: Path
    seed: int
    batch: int
    micro_batch: int
    optimizer: dict
    frozen: list[str]
    replicated: list[list[str]]  # runs of operators, first and last, of stages with several replicas

    @property
    def micro_batches(self) -> int:
        return self.batch // self.micro_batch


def read_plan(path: Path) -> Plan:
    try:
        content = json.loads(path.read_text())
        training = content["training"]
        replicated = [
            run
            for stage, staged in zip(content["stages"], content["staged"]["stages"])
            if len(staged["replicas"]) > 1
            for run in stage["operators"]
        ]
        return Plan(path, path.parent / content["model"], content["seed"], training["batch"],
                    content["stages"][0]["micro_batch"], training["optimizer"], training.get("frozen", []), replicated)
    except OSError as error:
        raise ParityError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ParityError(f"{path}: not a plan file: {error!r}") from None


def matches(patterns: list[str], names: list[str]) -> bool:
    """Whether '*' for any characters makes one pattern one of the names."""
    expressions = [re.escape(pattern).replace(r"\*", ".*") for pattern in patterns]
    return any(re.fullmatch(e, name, re.DOTALL) for e in expressions for name in names)


def schedule_factor(schedule: dict, step: int) -> float:
    """transformers' get_constant/linear/cosine_schedule_with_warmup; after the last step the rate stays 0."""
    warm_up, steps = schedule["warm_up"], schedule["steps"]
    if step < warm_up:
        return step / max(1, warm_up)
    if schedule["shape"] == "constant":
        return 1.0
    if step >= steps:
        return 0.0
    if schedule["shape"] == "linear":
        return max(0.0, (steps - step) / max(1, steps - warm_up))
    progress = (step - warm_up) / max(1, steps - warm_up)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))


CONSTANT = {"shape": "constant", "warm_up": 0, "steps": 0}


class Trainer:
    """PyTorch's side: a state, torch.optim on it, the step that comes next."""

    def __init__(self, program: torch.export.ExportedProgram, plan: Plan, steps: int):
        self.program, self.plan, self.step = program, plan, 0
        self.state = reference.fresh_state(program)
        self.names = {n: [n, *(m for m, first in self.state.tied.items() if first == n)] for n in self.state.parameters}
        for name, parameter in self.state.parameters.items():
            if name not in self.state.tied and matches(plan.frozen, self.names[name]):
                parameter.requires_grad_(False)
        self.parameters = self.state.trainable()
        self.optimizer = self.make_optimizer()
        schedule = dict(plan.optimizer.get("schedule", CONSTANT))
        schedule["steps"] = schedule["steps"] or steps  # of the whole run, where the plan does not say
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: schedule_factor(schedule, step))

    def make_optimizer(self) -> torch.optim.Optimizer:
        o = self.plan.optimizer
        kept = {n: matches(o.get("no_decay", []), self.names[n]) for n in self.parameters}
        groups = [
            {"params": [p for n, p in self.parameters.items() if not kept[n]], "weight_decay": o["weight_decay"]},
            {"params": [p for n, p in self.parameters.items() if kept[n]], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        if o["kind"] == "sgd":
            return torch.optim.SGD(groups, lr=o["learning_rate"], momentum=o["momentum"], foreach=False)
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[o["kind"]]
        return kind(groups, lr=o["learning_rate"], betas=(o["beta1"], o["beta2"]), eps=o["epsilon"], foreach=False)

    def stored(self, name: str, tensors: dict) -> torch.Tensor | None:
        """What a record holds for a parameter, under one of its names."""
        return next((tensors[other] for other in self.names[name] if other in tensors), None)

    def state_of(self, name: str, state: dict) -> torch.Tensor:
        stored = self.stored(name, state)
        if stored is None:
            raise ParityError(f"the record has no '{name}', which the model has")
        return stored

    def forward_backward(self, inputs: dict) -> float:
        """The step's loss; gradients are in `.grad`."""
        self.optimizer.zero_grad(set_to_none=True)
        losses = reference.run_forward_backward(
            self.program, self.state, inputs, micro_batches=self.plan.micro_batches, seed=self.plan.seed, step=self.step
        )
        return sum(losses) / len(losses)

    def clip(self) -> None:
        limit = self.plan.optimizer.get("clip_norm")
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), limit, foreach=False)

    def update(self) -> None:
        self.optimizer.step()
        self.schedule.step()
        self.step += 1

    def restore(self, stored: dict) -> None:
        """Takes the run's parameters and buffers for its own; buffers that are not saved stay."""
        with torch.no_grad():
            for name, parameter in self.state.parameters.items():
                if name not in self.state.tied:
                    parameter.copy_(self.state_of(name, stored))
            for name, buffer in self.state.buffers.items():
                if name in stored:
                    buffer.copy_(stored[name])


def norm(tensor: torch.Tensor) -> float:
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    return torch.linalg.vector_norm(wide).item()


def total(norms: dict[str, float]) -> float:
    return math.sqrt(sum(n * n for n in norms.values()))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a, b) or torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def rounding(tensor: torch.Tensor) -> float:
    """The relative error of one operation."""
    return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() or tensor.is_complex() else 0.0


def allowed(tolerance: float, tensor: torch.Tensor) -> float:
    """Eight roundings where the type is coarser than the tolerance: sums may be made in another order."""
    return max(tolerance, 8 * rounding(tensor)) if rounding(tensor) > tolerance else tolerance


@dataclass
class Difference:
    what: str  # loss, gradient norm, gradient, parameter, buffer, sample
    name: str
    step: int
    measure: float


@dataclass
class Worst:
    measure: float = 0.0
    name: str = ""

    def take(self, measure: float, name: str) -> None:
        if not measure <= self.measure:  # NaN is the worst of all
            self.measure, self.name = measure, name

    def __str__(self) -> str:
        return f"{self.measure:.1e} {self.name}" if self.name else "0"


@dataclass
class StepReport:
    step: int
    loss: float
    reference_loss: float
    alone_loss: float  # PyTorch's, training by itself from the beginning
    norm: float
    reference_norm: float
    gradient: Worst = field(default_factory=Worst)
    parameter: Worst = field(default_factory=Worst)


@dataclass
class Report:
    reference: str
    steps: list[StepReport] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    gradients: int = 0
    parameters: int = 0
    buffers: int = 0
    forward_backward_bits: bool = True  # losses and gradients are PyTorch's to the bit
    update_bits: bool = True  # and parameters and buffers

    @property
    def equal(self) -> bool:
        return not self.differences


class Checker:
    def __init__(self, plan: Plan, program: torch.export.ExportedProgram, steps: int, tolerance: float):
        self.plan, self.tolerance = plan, tolerance
        self.follower, self.alone = Trainer(program, plan, steps), Trainer(program, plan, steps)
        kind = type(self.follower.optimizer).__name__
        self.report = Report(f"PyTorch {torch.__version__}, torch.optim.{kind}, one process")
        self.partial = buffers_of_replicas(program, plan)

    def differs(self, what: str, name: str, step: int, measure: float, limit: float) -> None:
        if not measure <= limit:
            self.report.differences.append(Difference(what, name, step, measure))

    def take(self, step: int, record: dict, loss: float, gradient_norm: float) -> None:
        """Checks one step of the run, the next."""
        inputs = {n.removeprefix("input."): t for n, t in record.items() if n.startswith("input.")}
        gradients = {n.removeprefix("gradient."): t for n, t in record.items() if n.startswith("gradient.")}
        state = {n.removeprefix("state."): t for n, t in record.items() if n.startswith("state.")}
        alone_loss = self.alone.forward_backward(inputs)
        self.alone.clip()
        self.alone.update()
        right_loss = self.follower.forward_backward(inputs)
        right_norm = total({n: norm(p.grad) for n, p in self.follower.parameters.items() if p.grad is not None})
        self.follower.clip()
        report = StepReport(step, loss, right_loss, alone_loss, gradient_norm, right_norm)
        self.report.steps.append(report)
        self.compare_number("loss", step, loss, right_loss)
        self.report.forward_backward_bits &= loss == right_loss
        self.compare_number("gradient norm", step, gradient_norm, report.reference_norm)
        self.compare_gradients(report, gradients)
        self.compare_update(report, gradients, state)

    def compare_number(self, what: str, step: int, value: float, right: float) -> None:
        limit = max(allowed(self.tolerance, p) for p in [torch.ones(()), *self.follower.parameters.values()])
        same = value == right or math.isnan(value) and math.isnan(right)
        difference = 0.0 if same else abs(value - right) / max(abs(right), 1e-12)
        self.differs(what, what, step, difference, limit)

    def compare_gradients(self, report: StepReport, gradients: dict) -> None:
        """As the update takes them: after clipping."""
        right = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in self.follower.parameters.items()}
        sizes = {n: norm(g) for n, g in right.items()}
        floor = 1e-3 * total(sizes)
        self.report.gradients = len(right)
        for name, expected in right.items():
            gradient = self.follower.stored(name, gradients)
            if gradient is None:  # no operator reads it
                gradient = torch.zeros_like(expected)
            self.report.forward_backward_bits &= same_bits(gradient, expected)
            self.measure("gradient", report, name, gradient, expected, max(sizes[name], floor), 0.0, report.gradient)

    def compare_update(self, report: StepReport, gradients: dict, state: dict) -> None:
        """torch.optim with the run's own gradients must go where the run went."""
        follower = self.follower
        before = {n: p.detach().clone() for n, p in follower.parameters.items()}
        for name, parameter in follower.parameters.items():
            gradient = follower.stored(name, gradients)
            if parameter.grad is not None and gradient is not None:
                parameter.grad = gradient.clone()
        follower.update()
        moved = {n: norm(p.detach() - before[n]) for n, p in follower.parameters.items()}
        floor = 1e-3 * total(moved)
        untrained = {n: p for n, p in follower.state.parameters.items() if n not in moved and n not in follower.state.tied}
        self.report.parameters = len(moved) + len(untrained)
        for name, parameter in {**follower.parameters, **untrained}.items():
            stored, right = follower.state_of(name, state), parameter.detach()
            self.report.update_bits &= same_bits(stored, right)
            way = max(moved[name], floor) if name in moved else 0.0
            own = 4 * rounding(right) * norm(right) if name in moved else 0.0
            self.measure("parameter", report, name, stored, right, way, own, report.parameter)
        buffers = {n: b for n, b in follower.state.buffers.items() if n in state and n not in self.partial}
        self.report.buffers = len(buffers)
        for name, buffer in buffers.items():
            self.report.update_bits &= same_bits(state[name], buffer)
            self.measure("buffer", report, name, state[name], buffer, norm(buffer), 0.0, report.parameter)
        follower.restore(state)

    def measure(self, what: str, report: StepReport, name: str, value: torch.Tensor, right: torch.Tensor, scale: float,
                free: float, worst: Worst) -> None:
        """`free`: how far apart they may be in any case."""
        if value.shape != right.shape or value.dtype != right.dtype:
            raise ParityError(f"'{name}' is {value.dtype}{list(value.shape)} in the record, "
                              f"{right.dtype}{list(right.shape)} in the model")
        difference = 0.0 if same_bits(value, right) else norm(value - right) - free
        measure = 0.0 if difference <= 0 else difference / scale if scale > 0 else math.inf
        worst.take(measure, name)
        self.differs(what, name, report.step, measure, allowed(self.tolerance, right))


def buffers_of_replicas(program: torch.export.ExportedProgram, plan: Plan) -> set[str]:
    """Buffers that a stage with several replicas reads: the run records those of its first replica, which saw its own
    micro-batches only."""
    order = [node.name for node in reference.flat_operators(program.graph_module)]
    inside = set()
    for run in plan.replicated:
        try:
            inside.update(order[order.index(run[0]) : order.index(run[-1]) + 1])
        except ValueError:
            raise ParityError(f"{plan.path}: operator {run} is not in {plan.model}") from None
    signature = program.graph_signature.inputs_to_buffers
    return {
        signature[node.name]
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in signature and any(user.name in inside for user in node.users)
    }


def read_samples(path: Path, names: list[str], count: int) -> Counter:
    """The bytes of each of the first samples, of all these tensors together."""
    header, _, start = read_header(path)
    content, samples = path.read_bytes(), [b""] * count
    for name in names:
        begin, end = (start + offset for offset in header[name]["data_offsets"])
        size = (end - begin) // max(1, header[name]["shape"][0])
        samples = [s + content[begin + i * size : begin + (i + 1) * size] for i, s in enumerate(samples)]
    return Counter(samples)


def check_samples(report: Report, data: Path, records: list[Path], batch: int) -> None:
    """The batches are samples of the data file, and within an epoch none comes again."""
    shapes = {n: entry["shape"] for n, entry in read_header(data)[0].items()}
    recorded = {n.removeprefix("input."): entry["shape"] for n, entry in read_header(records[0])[0].items()}
    names = sorted(n for n, shape in recorded.items() if n in shapes and shape[:1] == [batch])
    count = min((shapes[n][0] for n in names), default=0)
    there, used = read_samples(data, names, count), Counter()
    for step, record in enumerate(records):
        if step % max(1, count // batch) == 0:
            used = Counter()
        used += read_samples(record, [f"input.{n}" for n in names], batch)
        if strangers := used - there:
            what = f"not in {data.name}, or twice in an epoch"
            report.differences.append(Difference("samples", what, step, sum(strangers.values())))
            return


def check_run(plan: Plan, folder: Path, *, tolerance: float = 1e-5, data: Path | None = None) -> Report:
    """Compares what `espalier run --record` wrote with what PyTorch computes by the plan."""
    torch.set_num_threads(1)
    files = sorted(folder.glob("step*.safetensors"), key=lambda f: int(f.stem.removeprefix("step")))
    if [f.stem for f in files] != [f"step{k}" for k in range(len(files))] or not files:
        raise ParityError(f"{folder}: has no record of a run from its first step")
    if not plan.model.exists():
        raise ParityError(f"{plan.path}: its model {plan.model} is not there")
    checker = Checker(plan, torch.export.load(plan.model), len(files), tolerance)
    for step, file in enumerate(files):
        record, texts = read_safetensors(file)
        checker.take(step, record, float(texts["loss"]), float(texts["gradient_norm"]))
    if data is not None:
        check_samples(checker.report, data, files, plan.batch)
    return checker.report


def find_program(named: str | None) -> str:
    built = Path(__file__).resolve().parent.parent / "build" / "release" / "espalier"
    for candidate in (named, shutil.which("espalier"), built):
        if candidate and Path(candidate).exists():
            return str(candidate)
    raise ParityError(f"there is no {named or 'espalier on the PATH or in build/release'}; name the program with --espalier")


def record_run(program: str, plan: Path, folder: Path, steps: int, arguments: list[str]) -> None:
    command = [program, "run", str(plan), "--steps", str(steps), "--record", str(folder), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        raise ParityError(f"{' '.join(command)}: ended with {done.returncode}")


def print_report(report: Report, tolerance: float) -> None:
    head = ["step", "loss", "in PyTorch", "by itself", "gradient norm", "in PyTorch", "worst gradient", "worst parameter"]
    rows = [[str(s.step + 1), f"{s.loss:.8g}", f"{s.reference_loss:.8g}", f"{s.alone_loss:.8g}", f"{s.norm:.6g}",
             f"{s.reference_norm:.6g}", str(s.gradient), str(s.parameter)] for s in report.steps]  # fmt: skip
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(c.rjust(w) if i < 6 else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip())
    for difference in report.differences[:20]:
        print(f"  step {difference.step + 1}: {difference.what} {difference.name}: {difference.measure:.3g}")
    if len(report.differences) > 20:
        print(f"  … and {len(report.differences) - 20} more")
    print(verdict(report, tolerance))


def verdict(report: Report, tolerance: float) -> str:
    steps = len(report.steps)
    what = (f"loss, {report.gradients} gradients, {report.parameters} parameters and {report.buffers} buffers of "
            f"{steps} step{'s' if steps != 1 else ''}")  # fmt: skip
    if not report.equal:
        first = report.differences[0]
        return (f"differs from {report.reference}: {len(report.differences)} of {what}; first: step {first.step + 1}, "
                f"{first.what} {first.name}")  # fmt: skip
    if report.forward_backward_bits:
        return f"equal to {report.reference}: {what}; losses and gradients to the bit"
    return f"equal to {report.reference} within {tolerance:g}: {what}"


def to_json(report: Report) -> dict:
    return {
        "equal": report.equal, "reference": report.reference, "gradients": report.gradients,
        "parameters": report.parameters, "buffers": report.buffers,
        "forward_backward_bit_equal": report.forward_backward_bits, "update_bit_equal": report.update_bits,
        "differences": [vars(d) for d in report.differences],
        "steps": [{**vars(s), "gradient": vars(s.gradient), "parameter": vars(s.parameter)} for s in report.steps],
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="espalier_parity.py", description="Check a plan's training against PyTorch itself.",
                                     epilog="Exit code: 0 equal, 1 something differs, 2 wrong input.")  # fmt: skip
    parser.add_argument("plan", type=Path, help="a plan file; its model lies beside it")
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="steps to train and to check; default: 3")
    parser.add_argument("--data", type=Path, metavar="FILE", help="train on this safetensors file, not on made-up data")
    parser.add_argument("--workers", type=int, metavar="N", help="processes of the run; default: one per device")
    parser.add_argument("--tolerance", type=float, default=1e-5, metavar="X", help="largest relative difference; default: 1e-5")
    parser.add_argument("--espalier", metavar="FILE", help="the program; default: on the PATH, or in build/release")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="check this record of `espalier run --record`; run nothing")
    parser.add_argument("--import", dest="imports", action="append", default=[], metavar="MODULE",
                        help="a Python module that registers the model's own operators; repeatable")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="JSON on standard output")
    args = parser.parse_args(arguments)
    try:
        if args.steps < 1:
            raise ParityError(f"--steps {args.steps}: expected a number above 0")
        for module in args.imports:
            sys.path.insert(0, os.getcwd())
            importlib.import_module(module)
        plan = read_plan(args.plan)
        with tempfile.TemporaryDirectory(prefix="espalier-parity-") as scratch:
            folder = args.record or Path(scratch)
            if not args.record:
                extra = [*(["--data", str(args.data)] if args.data else []),
                         *(["--workers", str(args.workers)] if args.workers else [])]  # fmt: skip
                record_run(find_program(args.espalier), args.plan, folder, args.steps, extra)
            report = check_run(plan, folder, tolerance=args.tolerance, data=args.data)
    except (ParityError, ImportError) as error:
        print(f"espalier_parity: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(to_json(report)))
    else:
        print_report(report, args.tolerance)
    return 0 if report.equal else 1


if __name__ == "__main__":
    sys.exit(main())
