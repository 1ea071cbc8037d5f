"""Writes a PyTorch model together with its loss as a .pt2 file that Espalier plans and trains.

    from espalier_export import export
    export(model, {"tokens": tokens}, "gpt.pt2", loss=my_loss, targets={"labels": labels})

    python espalier_export.py package.module:factory -o gpt.pt2 --loss cross_entropy

The written program's first output is the loss. Its parameters keep the model's own names: the
model and its loss are joined in a shallow copy of the model whose class is a subclass with another `forward`, so
there is no wrapper module and no name prefix. `docs/export.md` has the rules.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import io
import inspect
import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

import espalier_mend
from espalier_mend import MendError

FORMAT = "espalier.export/1"
EXPORTER_VERSION = "1"

LOSSES = {
    "cross_entropy": F.cross_entropy,
    "nll_loss": F.nll_loss,
    "mse_loss": F.mse_loss,
    "l1_loss": F.l1_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "huber_loss": F.huber_loss,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "binary_cross_entropy": F.binary_cross_entropy,
}


class ExportError(ValueError):
    """The model or the arguments are wrong. One line: what is wrong, and what would be right."""


@dataclass(frozen=True)
class Exported:
    """What `export` wrote: the program, and the metadata stored beside it as extra/espalier.json."""

    program: torch.export.ExportedProgram
    metadata: dict


def export(
    model: torch.nn.Module,
    example_inputs: tuple | dict,
    path: str | os.PathLike,
    *,
    loss: str | Callable | None = None,
    targets: dict | None = None,
    output: str | None = None,
    outputs: Sequence[str] = (),
    mode: str = "train",
    batch: str = "auto",
    min_batch: int = 2,
) -> Exported:
    """Writes `model` and its loss to `path`.

    example_inputs: the model's arguments, a tuple by position or a dict by name; the first dimension is the batch.
    loss: None if the model returns its loss (a scalar, or `.loss` of a dict-like output); else a name from LOSSES,
        a function or a module that is called as loss(outputs, *targets).
    targets: further inputs of the program that only the loss reads, by name.
    output: the field of a dict-like output that the loss reads. Not given: "logits", else its only floating-point tensor;
        where there are several, a function or module is called with all of them, as the model returns them.
    outputs: further outputs to keep, by name, as an evaluation reports them: fields of a dict-like output, "output" for an
        output without names, or names of the dict that a loss function returns as (loss, {"accuracy": …}).
    mode: "train" or "eval"; it decides whether dropout and batch statistics are in the program.
    batch: "auto" tries a dynamic batch and falls back to the example's size, with a line on stderr;
        "dynamic" refuses instead of falling back; "fixed" does not try.
    What is mended so that libtorch can run the program is told in a line each on stderr. A model on the meta device gives a
    file without weights, which can be planned and simulated. Raises ExportError. The model itself is left as it was.
    """
    path = Path(path)
    if path.suffix != ".pt2":
        raise ExportError(f"{path}: the file name must end in .pt2")
    if not path.resolve().parent.is_dir():
        raise ExportError(f"{path}: there is no folder {path.parent}")
    for name, value, allowed in (("mode", mode, ("train", "eval")), ("batch", batch, ("auto", "dynamic", "fixed"))):
        if value not in allowed:
            raise ExportError(f"{name}={value!r}: must be one of {', '.join(allowed)}")

    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    if isinstance(model, torch.jit.ScriptModule):
        raise ExportError(f"{model.original_name} is a TorchScript module: give the torch.nn.Module that it was made of")
    inputs = named_inputs(model, example_inputs)
    targets = dict(targets or {})
    clash = sorted(inputs.keys() & targets.keys())
    if clash:
        raise ExportError(f"{clash[0]!r} is both an input of the model and a target: give the target another name")
    if isinstance(outputs, str):
        outputs = [outputs]
    if "loss" in outputs or len(set(outputs)) < len(outputs):
        raise ExportError(f"outputs={list(outputs)}: each name once, and the loss is always there")
    name = type(model).__name__
    values = {**inputs, **targets}
    size = batch_size(values)
    original, ties = model, {}
    without_weights = any(t.is_meta for t in [*model.parameters(), *model.buffers()])
    if without_weights:
        model, values, ties = espalier_mend.with_stand_ins(model, values)
    takes_all = callable(loss) or (isinstance(loss, str) and ":" in loss)
    joined = join(model, list(inputs), list(targets), find_loss(loss), output, takes_all, list(outputs))

    training = mode == "train"
    try:
        with train_mode(joined, training), espalier_mend.traceable(joined, training) as mended:
            program, batches = trace(joined, values, size, batch, min_batch, name)
        mended += espalier_mend.mend_program(program)
    except MendError as error:
        raise ExportError(f"{name}: {error}") from error
    check_outputs(program, list(outputs))
    shorten_stack_traces(program)
    for line in mended:
        print(f"espalier_export: {name}: {line}", file=sys.stderr)
    names = [result.name for result in program.graph.output_node().args[0]]
    metadata = {
        "format": FORMAT,
        "exporter": EXPORTER_VERSION,
        "torch": torch.__version__.split("+")[0],
        "model": type(original).__name__,
        "loss": loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__) if loss else "model",
        "mode": mode,
        "inputs": list(inputs),
        "targets": list(targets),
        "outputs": dict(zip(["loss", *outputs], names)),
        "batch": batch_metadata(batches, size),
        "operators": espalier_mend.operator_facts(program),
        "mended": mended,
    }
    if without_weights:
        metadata |= {"weights": "none", "ties": ties}
    torch.export.save(program, path, extra_files={"espalier.json": json.dumps(metadata, indent=1)})
    return Exported(program, metadata)


def batch_metadata(batches: Batches | None, size: int) -> dict:
    if batches is None:
        return {"kind": "fixed", "size": size}
    least, most = batches
    return {"kind": "dynamic", "min": least, **({} if most is None else {"max": most}), "example": size}


def named_inputs(model: torch.nn.Module, example_inputs: tuple | dict) -> dict:
    """The example inputs by the names of the model's own forward arguments, in their order."""
    signature = inspect.signature(model.forward)
    try:
        if isinstance(example_inputs, Mapping):
            bound = signature.bind(**example_inputs)
        elif isinstance(example_inputs, (tuple, list)):
            bound = signature.bind(*example_inputs)
        else:
            bound = signature.bind(example_inputs)
    except TypeError as error:
        raise ExportError(f"the example inputs do not fit {type(model).__name__}.forward{signature}: {error}") from None
    named = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            raise ExportError(f"{type(model).__name__}.forward takes *{name}: give it named arguments to export it")
        named.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    return named


def find_loss(loss: str | Callable | None) -> Callable | None:
    if loss is None or callable(loss):
        return loss
    if loss in LOSSES:
        return LOSSES[loss]
    if isinstance(loss, str) and loss + "_loss" in LOSSES:
        return LOSSES[loss + "_loss"]
    if isinstance(loss, str) and ":" in loss:
        return load_object(loss)
    raise ExportError(f"loss {loss!r}: must be one of {', '.join(LOSSES)}, or package.module:function")


def join(
    model: torch.nn.Module,
    input_names: list[str],
    target_names: list[str],
    loss: Callable | None,
    output: str | None,
    takes_all: bool,
    kept: list[str],
) -> torch.nn.Module:
    """A module that has the model's own parameters, under the same names, and returns the loss.

    The copy is shallow: it shares the model's tables of parameters, buffers and sub-modules. Its class is a
    subclass made here, so `forward` runs with all attributes and methods of the model.
    """
    base = type(model)
    original = model.__dict__.get("forward", None) or base.forward
    is_method = "forward" not in model.__dict__
    joined = copy.copy(model)
    joined.__dict__.pop("forward", None)
    plain = copy.copy(joined)  # runs the model: without the loss among its sub-modules, all of which Sequential calls
    loss_name = None
    if isinstance(loss, torch.nn.Module):
        loss_name = "loss" if not hasattr(model, "loss") else "loss_function"
        joined.__dict__["_modules"] = {**model._modules, loss_name: loss}

    parameter = inspect.Parameter
    names = [*input_names, *target_names]
    signature = inspect.Signature([parameter(n, parameter.POSITIONAL_OR_KEYWORD) for n in ["self", *names]])

    def forward(self, *args, **kwargs):
        values = signature.bind(self, *args, **kwargs).arguments
        inputs = {name: values[name] for name in input_names}
        outputs = original(plain, **inputs) if is_method else original(**inputs)
        named = named_outputs(outputs)
        if loss is None:
            result = own_loss(outputs)
        else:
            call = getattr(self, loss_name) if loss_name else loss
            result = call_loss(call, loss_argument(outputs, output, takes_all), *(values[name] for name in target_names))
            if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
                named |= result[1]
                result = result[0]
        result = checked_loss(result)
        return (result, *(checked_output(named, name) for name in kept)) if kept else result

    forward.__signature__ = signature
    joined.__class__ = type(base)(
        base.__name__,
        (base,),
        {"forward": forward, "__module__": base.__module__, "__qualname__": base.__qualname__},
    )
    return joined


def own_loss(outputs: Any) -> torch.Tensor:
    """The loss that the model computed itself."""
    if isinstance(outputs, Mapping):
        if outputs.get("loss") is None:
            raise ExportError(
                f"the model returns {', '.join(outputs)} and no loss: give it its labels as an input, or give a loss"
            )
        return outputs["loss"]
    if isinstance(outputs, (tuple, list)) and outputs and isinstance(outputs[0], torch.Tensor) and outputs[0].dim() == 0:
        return outputs[0]
    if isinstance(outputs, torch.Tensor) and outputs.numel() == 1:
        return outputs
    what = f"a tensor of shape {list(outputs.shape)}" if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    raise ExportError(f"the model returns {what}, not a loss: give a loss, for example --loss cross_entropy")


def named_outputs(outputs: Any) -> dict:
    if isinstance(outputs, Mapping):
        return dict(outputs)
    return {"output": outputs} if isinstance(outputs, torch.Tensor) else {}


def checked_output(named: dict, name: str) -> torch.Tensor:
    if name not in named:
        raise ExportError(f"--outputs {name}: there is no such output; there are {', '.join(named) or 'none'}")
    value = named[name]
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        what = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
        raise ExportError(f"--outputs {name}: is {what}, and must be a floating-point tensor")
    return value


def loss_argument(outputs: Any, output: str | None, takes_all: bool) -> Any:
    """The part of the model's output that the loss reads; `takes_all`: the loss is the user's, and may read several."""
    if not isinstance(outputs, Mapping):
        if output is not None:
            raise ExportError(f"--output {output}: the model's output has no names, leave it out")
        return outputs
    tensors = [n for n, value in outputs.items() if isinstance(value, torch.Tensor) and value.is_floating_point()]
    field = output or (tensors[0] if "logits" not in outputs and len(tensors) == 1 else "logits")
    if field in outputs:
        return outputs[field]
    if output is None and takes_all:
        return outputs
    raise ExportError(f"the model's output has no {field!r}: name one of {', '.join(outputs)} with --output")


def call_loss(loss: Callable, outputs: Any, *targets: torch.Tensor) -> Any:
    try:
        return loss(outputs, *targets)
    except AttributeError as error:
        if isinstance(outputs, torch.Tensor) and error.obj is outputs:
            raise ExportError(
                f"the loss asks for .{error.name}, but is called with one tensor of the model's output: "
                "let it read the tensor itself"
            ) from error
        raise


def checked_loss(value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise ExportError(f"the loss is a {type(value).__name__}: it must be a tensor with one number")
    if value.numel() != 1:
        raise ExportError(f"the loss has shape {list(value.shape)}: it must be one number, for example its mean")
    if not value.dtype.is_floating_point:
        raise ExportError(f"the loss has type {value.dtype}: it must be floating-point")
    return value.reshape(()) if value.dim() else value


def batch_size(values: dict) -> int:
    """The first dimension of the first tensor that has one."""
    for tensor in pytree.tree_leaves(values):
        if isinstance(tensor, torch.Tensor) and tensor.dim() > 0:
            return tensor.shape[0]
    raise ExportError("no example input is a tensor with a batch dimension")


Batches = tuple[int, int | None]  # the least and the largest batch; None: any


def trace(
    joined: torch.nn.Module, values: dict, size: int, batch: str, min_batch: int, model_name: str
) -> tuple[torch.export.ExportedProgram, Batches | None]:
    """The exported program, and its batches if they are dynamic."""
    reason = None
    if batch != "fixed":
        if size < 2:
            reason = f"the example batch is {size}; 2 or more is needed for a dynamic batch"
        else:
            program, batches, reason = trace_dynamic(joined, values, size, min_batch)
            if program is not None:
                if batches != (min_batch, None):
                    why = "others take another way through its code"
                    print(f"espalier_export: {model_name} is exported for {spelled(batches)}: {why}", file=sys.stderr)
                return program, batches
    try:
        with quiet():
            program = torch.export.export(joined, (), values)
    except (ExportError, MendError):
        raise
    except Exception as error:
        raise ExportError(f"torch.export cannot export {model_name}: {refusal(error)}") from error
    if reason is not None:
        if batch == "dynamic":
            raise ExportError(f"{model_name} cannot have a dynamic batch: {reason}")
        print(f"espalier_export: {model_name} is exported for micro-batches of {size} only: {reason}", file=sys.stderr)
    return program, None


def trace_dynamic(
    joined: torch.nn.Module, values: dict, size: int, min_batch: int
) -> tuple[torch.export.ExportedProgram | None, Batches, str | None]:
    """The program for all batches that take the example's way through the code, with these; or why there is none."""
    batches, deferred = (min_batch, None), False
    while True:
        dim = torch.export.Dim("batch", min=batches[0], max=batches[1])
        shapes = pytree.tree_map(
            lambda x: {0: dim} if isinstance(x, torch.Tensor) and x.dim() and x.shape[0] == size else None, values
        )
        with espalier_mend.watched_batch() as places:
            try:
                with quiet():
                    program = torch.export.export(
                        joined, (), values, dynamic_shapes=shapes, prefer_deferred_runtime_asserts_over_guards=deferred
                    )
                return program, batches, None
            except (ExportError, MendError):
                raise
            except Exception as error:  # export raises many types; what follows tells the batch from other reasons
                reason = f"{places[0]} needs it as a constant" if places else first_reason(error)
                fitting = batches_that_fit(error, size, batches)
        if fitting is None or (fitting == batches and deferred):
            return None, batches, reason
        if fitting == batches:
            deferred = True  # they hold for each of these batches, but torch.export cannot prove it
        else:
            batches = fitting


def spelled(batches: Batches) -> str:
    least, most = batches
    return f"any batch from {least}" if most is None else f"batches from {least} to {most}"


def batches_that_fit(error: Exception, size: int, within: Batches) -> Batches | None:
    """The batches around `size` for which all conditions that torch.export lacks for a dynamic batch hold, such as
    12*b*min(32, 384*b) == 384*b, which it cannot prove, or b <= 63. None: there are other reasons, or no second batch."""
    wanted = [line for line in str(error).splitlines() if line.startswith("  - ")]
    guards = [re.search(r"satisfy the generated guard (.*?)\.?$", line) for line in wanted]
    if not guards or not all(guards):
        return None
    names = {"__builtins__": {}, "min": min, "max": max, "Min": min, "Max": max, "Mod": lambda a, b: a % b}
    conditions = [re.sub(r"L(\['\w+'\]|\[\d+\])+\.size\(\)\[\d+\]", "b", guard[1]) for guard in guards]

    def fits(b: int) -> bool:
        return all(eval(condition, {**names, "b": b}) for condition in conditions)

    least, most = within
    limit = most or 1024
    try:
        below = next((b for b in range(size, least - 1, -1) if not fits(b)), least - 1)
        above = next((b for b in range(size, limit + 1) if not fits(b)), limit + 1)
    except Exception:  # a condition of another sort
        return None
    fitting = (below + 1, most if above > limit else above - 1)
    return None if above - below <= 2 else fitting


def refusal(error: Exception) -> str:
    """Why no program can be made: the user's line where there is one."""
    place = espalier_mend.raised_at(error)
    if isinstance(error, GuardOnDataDependentSymNode):
        return (
            f"{place or 'its code'} decides by the values of tensors, which are known only when it runs: "
            "write the choice with torch.where, or take it out of forward"
        )
    return f"{place}: {first_reason(error)}" if place else first_reason(error)


def first_reason(error: Exception) -> str:
    """One line out of torch.export's long messages."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip(" -")]
    for line in lines:
        if re.search(r"specialized|inferred to be a constant|[Nn]ot all values of|violated|Could not guard", line):
            if "violated" in line and len(lines) > 1:
                continue
            return line[:300]
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"


def check_outputs(program: torch.export.ExportedProgram, kept: list[str]) -> None:
    outputs = list(program.graph.output_node().args[0])
    if len(outputs) != 1 + len(kept):
        raise ExportError(f"the exported program has {len(outputs)} outputs: it must have one, the loss")
    if len(set(outputs)) < len(outputs):
        raise ExportError(f"two of the outputs {', '.join(['loss', *kept])} are one tensor: leave one out")


def shorten_stack_traces(program: torch.export.ExportedProgram) -> None:
    """Keeps the frames of the user's code, without the folders of this machine before each file name."""
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            text = node.meta.get("stack_trace")
            if text is None:
                continue
            frames = re.findall(r'^ *File "(.*?)", (line \d+, in .*(?:\n(?! *File ").*)*)', text, re.MULTILINE)
            named = [
                (espalier_mend.short_file(file), rest)
                for file, rest in frames
                if os.path.abspath(file) != os.path.abspath(__file__)
            ]
            users = [frame for frame in named if not frame[0].startswith("torch" + os.sep)] or named
            node.meta["stack_trace"] = "\n".join(f'  File "{file}", {rest}' for file, rest in users)


@contextlib.contextmanager
def train_mode(module: torch.nn.Module, training: bool):
    """Sets every sub-module's mode, and puts the old modes back at the end."""
    before = [(m, m.training) for m in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for m, was in before:
            m.training = was


@contextlib.contextmanager
def quiet():
    """Keeps torch.export's warnings, logs and printed graphs off the terminal; what matters is in our own one line."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with contextlib.redirect_stderr(io.StringIO()):
                yield
    finally:
        logging.disable(before)


def load_object(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    if not attribute:
        raise ExportError(f"{name!r}: must be package.module:name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ExportError(f"cannot import {module_name}: {error}") from None
    if not hasattr(module, attribute):
        raise ExportError(f"module {module_name} has no {attribute!r}")
    return getattr(module, attribute)


def parse_setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ExportError(f"--set {text}: must be name=value")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def call_factory(name: str, settings: dict) -> tuple:
    factory = load_object(name)
    try:
        inspect.signature(factory).bind(**settings)
    except TypeError as error:
        raise ExportError(f"{name} does not take these settings: {error}") from None
    made = factory(**settings)
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], torch.nn.Module):
        raise ExportError(f"{name} must return (model, inputs) or (model, inputs, targets)")
    return made


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="espalier_export.py",
        description="Write a PyTorch model with its loss as a .pt2 file for Espalier.",
        epilog="The factory returns (model, inputs) or (model, inputs, targets): inputs is a tuple or a dict of "
        "example tensors, targets a dict of tensors that only the loss reads.",
    )
    parser.add_argument("factory", help="package.module:function that builds the model and its example inputs")
    parser.add_argument("-o", "--output-file", required=True, metavar="FILE.pt2")
    parser.add_argument("--loss", help=f"one of {', '.join(LOSSES)}, or package.module:function")
    parser.add_argument("--output", help="the field of a dict-like model output that the loss reads (default logits, or its only tensor)")
    parser.add_argument("--outputs", default="", metavar="NAME,…", help="further outputs to keep, by name")
    parser.add_argument("--mode", choices=("train", "eval"), default="train")
    parser.add_argument("--batch", choices=("auto", "dynamic", "fixed"), default="auto")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="argument of the factory")
    args = parser.parse_args(arguments)
    try:
        made = call_factory(args.factory, dict(parse_setting(text) for text in args.set))
        exported = export(
            made[0],
            made[1],
            args.output_file,
            loss=args.loss,
            targets=made[2] if len(made) == 3 else None,
            output=args.output,
            outputs=[name for name in args.outputs.split(",") if name],
            mode=args.mode,
            batch=args.batch,
        )
    except ExportError as error:
        print(f"espalier_export: {error}", file=sys.stderr)
        return 2
    print(describe(args.output_file, exported.metadata), file=sys.stderr)
    return 0


def describe(path: str, metadata: dict) -> str:
    batch = metadata["batch"]
    dynamic = batch["kind"] == "dynamic"
    size = spelled((batch["min"], batch.get("max"))) if dynamic else f"micro-batches of {batch['size']}"
    weights = ", no weights" if metadata.get("weights") == "none" else ""
    return f"wrote {path}: {metadata['model']}, {metadata['mode']} mode, {size}{weights}"


if __name__ == "__main__":
    sys.exit(main())
