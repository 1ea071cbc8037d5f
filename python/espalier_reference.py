"""Runs a .pt2 training program in PyTorch exactly as Espalier's runtime runs it: the reference for parity.

The program is run operator by operator on one process. Before each operator that draws random numbers the
default generator is seeded with `key(seed, step, micro_batch, operator_index)`, so every plan, every process and
every recompute draws the same numbers.

Operator index: the position in the "nodes" list of models/model.json. A node that only wraps a sub-graph
(wrap_with_set_grad_enabled, wrap_with_autocast) has no number; its sub-graph's nodes stand in its place, depth first.
All other nodes count, those that compute sizes and check shapes too.
"""

from __future__ import annotations

import contextlib
import operator
from dataclasses import dataclass

import torch

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix64(z: int) -> int:
    """The finaliser of splitmix64."""
    z = (z + GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def key(seed: int, step: int, micro_batch: int, operator_index: int) -> int:
    """The seed of one operator in one micro-batch of one step: non-negative, 63 bits."""
    h = seed & MASK
    for v in (step, micro_batch, operator_index):
        h = mix64(h ^ ((v + GOLDEN + (h << 6) + (h >> 2)) & MASK))
    return h & 0x7FFFFFFFFFFFFFFF


def is_random(target) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


WRAPPERS = {"wrap_with_set_grad_enabled", "wrap_with_autocast"}


def is_wrapper(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def enter_wrapper(node: torch.fx.Node):
    """(context in which the sub-graph runs, the sub-graph's node, its arguments)."""
    if node.target.name() == "wrap_with_set_grad_enabled":
        enabled, body, *rest = node.args
        return torch.set_grad_enabled(enabled), body, rest
    if node.target.name() == "wrap_with_autocast":
        device, dtype, enabled, cache, body, *rest = node.args
        return torch.autocast(device, dtype, enabled, cache), body, rest
    raise NotImplementedError(f"{node.name}: sub-graphs under {node.target} are not supported")


def flat_operators(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """The program's operators; the position in the list is the operator index."""
    flat = []
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if is_wrapper(node):
            body = next(arg for arg in node.args if isinstance(arg, torch.fx.Node) and arg.op == "get_attr")
            flat += flat_operators(getattr(module, body.target))
        else:
            flat.append(node)
    return flat


class Interpreter:
    """Runs the graph once, counting operators as `flat_operators` does."""

    def __init__(self, seed: int, step: int, micro_batch: int):
        self.seed, self.step, self.micro_batch = seed, step, micro_batch
        self.next_index = 0

    def run(self, module: torch.fx.GraphModule, arguments: list):
        values: dict[torch.fx.Node, object] = {}
        arguments = iter(arguments)

        def load(arg):
            return torch.fx.node.map_arg(arg, lambda node: values[node])

        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(arguments)
            elif node.op == "get_attr":
                values[node] = getattr(module, node.target)
            elif node.op == "output":
                return load(node.args[0])
            elif node.target is operator.getitem:
                values[node] = operator.getitem(*load(node.args))
            elif is_wrapper(node):
                context, body, rest = enter_wrapper(node)
                with context:
                    values[node] = self.run(values[body], load(rest))
            else:
                if is_random(node.target):
                    torch.manual_seed(key(self.seed, self.step, self.micro_batch, self.next_index))
                self.next_index += 1
                values[node] = node.target(*load(node.args), **load(node.kwargs))
        raise AssertionError("a graph ends with an output node")


@dataclass
class State:
    """Parameters and buffers by name; names of tied parameters map to one tensor."""

    parameters: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    tied: dict[str, str]  # further name -> the first name of the same storage

    def trainable(self) -> dict[str, torch.Tensor]:
        """By first name: a tied parameter once."""
        return {n: p for n, p in self.parameters.items() if p.requires_grad and n not in self.tied}


def fresh_state(program: torch.export.ExportedProgram) -> State:
    """A copy of the program's stored tensors, ready for one training run."""
    parameters, buffers, tied, first_name = {}, {}, {}, {}
    for name in program.graph_signature.parameters:
        stored = program.state_dict[name]
        identity = (stored.untyped_storage().data_ptr(), stored.storage_offset(), stored.shape, stored.stride())
        if identity in first_name:
            tied[name] = first_name[identity]
            parameters[name] = parameters[tied[name]]
            continue
        first_name[identity] = name
        parameters[name] = stored.detach().clone().requires_grad_(stored.requires_grad)
    for name in program.graph_signature.buffers:
        stored = program.state_dict[name] if name in program.state_dict else program.constants[name]
        buffers[name] = stored.detach().clone()
    return State(parameters, buffers, tied)


def run_loss(
    program: torch.export.ExportedProgram, state: State, inputs: dict, *, seed: int, step: int, micro_batch: int
) -> torch.Tensor:
    """The loss of one micro-batch; buffers in `state` are updated in place."""
    kinds = torch.export.graph_signature.InputKind
    arguments = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is kinds.PARAMETER:
            arguments.append(state.parameters[spec.target])
        elif spec.kind is kinds.BUFFER:
            arguments.append(state.buffers[spec.target])
        elif spec.kind is kinds.CONSTANT_TENSOR:
            arguments.append(program.constants[spec.target])
        elif spec.kind is kinds.USER_INPUT:
            arguments.append(inputs[spec.arg.name])
        else:
            raise NotImplementedError(f"input {spec.arg.name}: {spec.kind}")
    outputs = Interpreter(seed, step, micro_batch).run(program.graph_module, arguments)
    scalars = [o for o in outputs if isinstance(o, torch.Tensor) and o.dim() == 0 and o.is_floating_point()]
    if not scalars:
        raise NotImplementedError("the program has no floating-point scalar among its outputs, and so no loss")
    return scalars[0]  # of several, the first: the exporter puts the loss there


def micro_batches_of(program: torch.export.ExportedProgram, inputs: dict, micro_batches: int) -> list[dict]:
    """The inputs of each micro-batch, in memory of their own; inputs without samples go to each of them whole."""
    exported = {n.name: n.meta["val"].shape for n in program.graph.nodes if n.op == "placeholder" and n.name in inputs}
    parts = [{} for _ in range(micro_batches)]
    for name, tensor in inputs.items():
        shape = exported[name]
        has_samples = len(shape) > 0 and (not isinstance(shape[0], int) or shape[0] != tensor.shape[0])
        size = tensor.shape[0] // micro_batches if has_samples else 0
        for j, part in enumerate(parts):
            part[name] = tensor[j * size : (j + 1) * size].clone() if has_samples else tensor
    return parts


def run_forward_backward(
    program: torch.export.ExportedProgram, state: State, inputs: dict, *, micro_batches: int, seed: int, step: int
) -> list[float]:
    """The micro-batches' losses; adds the gradient of their mean to the parameters' `.grad`."""
    losses = []
    for j, part in enumerate(micro_batches_of(program, inputs, micro_batches)):
        loss = run_loss(program, state, part, seed=seed, step=step, micro_batch=j)
        losses.append(loss.item())
        loss.backward(torch.full_like(loss, 1 / micro_batches))
    return losses


@dataclass
class Step:
    losses: list[float]  # of the micro-batches
    loss: float  # their mean
    gradients: dict[str, torch.Tensor]  # by first name; zeros where the loss does not reach the parameter
    buffers: dict[str, torch.Tensor]  # after the step
    tied: dict[str, str]


def run_step(
    program: torch.export.ExportedProgram, inputs: dict, *, micro_batches: int, seed: int, step: int = 0
) -> Step:
    """Loss and every gradient of one step: the gradient of the mean over equal micro-batches, before any update."""
    torch.set_num_threads(1)
    state = fresh_state(program)
    losses = run_forward_backward(program, state, inputs, micro_batches=micro_batches, seed=seed, step=step)
    gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in state.trainable().items()}
    return Step(losses, sum(losses) / micro_batches, gradients, state.buffers, state.tied)
