"""What keeps a model from being exported or run without Python, and can be mended without changing what it computes.

Before tracing, `traceable(model, training)` takes random decisions of Python code out of the model (layerdrop, the masks of
SpecAugment) and lets checks of the data pass. After it, `mend_program(program)` takes out of the graph what libtorch cannot
call: regions of torch.vmap, and operators that are registered in Python. Both tell in one line each what they did; what
cannot be mended raises MendError with the operator and the user's source line. Operators whose results nobody reads are left
out, and nothing is said of it.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

HERE = os.path.dirname(os.path.abspath(__file__))
TORCH = os.path.dirname(os.path.abspath(torch.__file__))


class MendError(ValueError):
    """The program needs what libtorch does not have. One line: operator, source line, what would be right."""


# -- Source lines -------------------------------------------------------------------------------------------------------


def is_user_file(file: str) -> bool:
    if file.startswith("<"):  # made at run time, such as "<string>"
        return False
    file = os.path.abspath(file)
    return not file.startswith((TORCH + os.sep, HERE + os.sep + "espalier_"))


def short_file(file: str) -> str:
    """The file without the folders of this machine."""
    roots = sorted({os.path.abspath(entry) for entry in [*sys.path, os.getcwd()] if entry}, key=len, reverse=True)
    root = next((r for r in roots if file.startswith(r + os.sep)), None)
    return os.path.relpath(file, root) if root else os.path.basename(file)


def line_text(file: str, line: int) -> str:
    """'m.py:9, "if x.any():"'"""
    code = linecache.getline(file, line).strip()
    return f"{short_file(file)}:{line}" + (f', "{code[:100]}"' if code else "")


def raised_at(error: BaseException) -> str | None:
    """The user's line that an exception came out of."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_user_file(f.filename)]
    return line_text(frames[-1].filename, frames[-1].lineno) if frames else None


def made_at(node: torch.fx.Node) -> str:
    """The user's line that made a node, else its module, else its name."""
    stack = node.meta.get("stack_trace") or ""
    frames = [line.strip() for line in stack.splitlines() if line.strip().startswith('File "')]
    for frame in reversed(frames):
        file, _, rest = frame.removeprefix('File "').partition('", line ')
        if is_user_file(file):
            return line_text(file, int(rest.split(",")[0]))
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    return (modules[-1][0] if modules else "") or node.name


# -- Before tracing -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def traceable(model: torch.nn.Module, training: bool) -> Iterator[list[str]]:
    """Gives the lines that say what is left out of the program. The model is as it was afterwards."""
    lines: list[str] = []
    changed: list[tuple[Any, str, Any]] = []

    def change(owner: Any, name: str, value: Any) -> None:
        changed.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    rand = torch.rand
    try:
        if training:
            lines += leave_out_random_choices(model, change)
            torch.rand = rand_without_layerdrop(rand)
        checks = MendedCalls()
        change(torch, "_check_tensor_all", checks.all_true)
        change(FakeTensor, "tolist", checks.known_list(FakeTensor.tolist))
        change(torch.autograd, "grad", refused("takes a gradient (torch.autograd.grad) inside forward, which no program holds"))
        packed = refused("packs sequences by lengths, which are known only when it runs: leave them padded")
        change(torch._VF, "_pack_padded_sequence", packed)
        change(torch.nn.Module, "to", moved_if_elsewhere(torch.nn.Module.to))
        with checks, ctc_of_padded_targets():
            yield lines
        if checks.lines:
            lines.append(counted("checks of the data are left out", checks.lines))
    finally:
        torch.rand = rand
        for owner, name, value in reversed(changed):
            setattr(owner, name, value)


@contextlib.contextmanager
def ctc_of_padded_targets() -> Iterator[None]:
    """Sizes for ctc_loss with the lengths in tensors: its table has a column for each letter of the longest target, at most
    all that a padded target has. torch.export knows none, since they depend on data. Targets in one row stay refused."""
    op = torch.ops.aten._ctc_loss.Tensor
    one_row = refused("gives ctc_loss its targets in one row, whose length is known only when it runs: leave them padded")

    def sizes(mode, func, log_probs, targets, input_lengths, target_lengths, *args, **kwargs):
        if targets.dim() != 2:
            one_row()
        time, batch = log_probs.shape[:2]
        return log_probs.new_empty(batch), log_probs.new_empty(batch, time, 2 * targets.shape[1] + 1)

    fake_impls.register_op_impl(op)(sizes)
    try:
        yield
    finally:
        fake_impls.op_implementations_dict.pop(op)


@contextlib.contextmanager
def watched_batch() -> Iterator[list[str]]:
    """The user's lines that make a varying size a constant, while a model is traced."""
    lines: list[str] = []
    original = ShapeEnv._set_replacement

    def watched(self, symbol, value, message):
        if value.is_number:
            frames = traceback.extract_stack()
            traced = max((i for i, f in enumerate(frames) if f.filename.endswith("export/_trace.py")), default=0)
            users = [f for f in frames[traced:] if is_user_file(f.filename)]
            if users:
                lines.append(line_text(users[-1].filename, users[-1].lineno))
        return original(self, symbol, value, message)

    ShapeEnv._set_replacement = watched
    try:
        yield lines
    finally:
        ShapeEnv._set_replacement = original


def counted(what: str, places: list[str]) -> str:
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f"{what} ({places[0]}{more})"


def with_stand_ins(model: torch.nn.Module, values: dict) -> tuple[torch.nn.Module, dict, dict]:
    """A copy of a model that has tensors without bytes (made on the meta device): sizes and types without memory, on the
    CPU. With it the inputs in the same form, and the ties: further name → first name."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    made: dict[int, torch.Tensor] = {}

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        with mode:
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        return torch.nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else fake

    copied = copy.deepcopy(model)
    keep = []  # so that no id is used again
    first_names: dict[int, str] = {}
    ties = {}
    for prefix, module in copied.named_modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is None or not tensor.is_meta:
                    continue
                full = f"{prefix}.{name}" if prefix else name
                if id(tensor) in made:
                    ties[full] = first_names[id(tensor)]
                else:
                    made[id(tensor)], first_names[id(tensor)] = stand_in(tensor), full
                    keep.append(tensor)
                table[name] = made[id(tensor)]
    inputs = pytree.tree_map(lambda x: stand_in(x) if isinstance(x, torch.Tensor) else x, values)
    return copied, inputs, ties


def leave_out_random_choices(model: torch.nn.Module, change: Callable) -> list[str]:
    dropped, masked = {}, False
    owners = {}
    for module in model.modules():
        owners[id(module)] = module
        config = getattr(module, "config", None)
        if hasattr(config, "__dict__"):  # other packages keep a dict or a name there
            owners[id(config)] = config
    for owner in owners.values():
        for name in [n for n in vars(owner) if n.endswith("layerdrop")]:
            rate = getattr(owner, name)
            if isinstance(rate, (int, float)) and rate > 0:
                dropped[name] = rate
                change(owner, name, 0.0)
        rates = [n for n in ("mask_time_prob", "mask_feature_prob") if (vars(owner).get(n) or 0) > 0]
        if rates and vars(owner).get("apply_spec_augment", True):
            masked = True
            for name in ["apply_spec_augment"] if "apply_spec_augment" in vars(owner) else rates:
                change(owner, name, 0.0 if name in rates else False)
    lines = []
    if dropped:
        rates = ", ".join(f"{name} {rate:g}" for name, rate in sorted(dropped.items()))
        lines.append(f"layerdrop is off ({rates}): which operators run cannot depend on a random number")
    if masked:
        lines.append("SpecAugment is off: numpy draws its masks, they would be the same in each step")
    return lines


def moved_if_elsewhere(to: Callable) -> Callable:
    """Module.to, but nothing where all is in place: in a traced forward the parameters cannot be exchanged."""

    def replaced(module, *args, **kwargs):
        device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)
        tensors = [*module.parameters(), *module.buffers()]
        kinds = {(t.device, t.dtype if t.is_floating_point() or t.is_complex() else dtype) for t in tensors}
        there = all(device in (None, d) and dtype in (None, t) for d, t in kinds)
        return module if there and layout is None else to(module, *args, **kwargs)

    return replaced


def has_layerdrop(module: Any) -> bool:
    owners = (module, getattr(module, "config", None))
    return any(name.endswith("layerdrop") for owner in owners if owner is not None for name in getattr(owner, "__dict__", ()))


def rand_without_layerdrop(rand: Callable) -> Callable:
    """torch.rand, but 1.0 where a module with layerdrop asks whether to leave out a layer: `torch.rand([]) < 0`."""

    def replaced(*args, **kwargs):
        if args in (([],), ((),)) and not kwargs and has_layerdrop(sys._getframe(1).f_locals.get("self")):
            return 1.0
        return rand(*args, **kwargs)

    return replaced


def refused(why: str) -> Callable:
    def replaced(*args, **kwargs):
        frame = user_frame(sys._getframe(1))
        raise MendError(f"{line_text(frame.f_code.co_filename, frame.f_lineno) if frame else 'its code'} {why}")

    return replaced


class MendedCalls(TorchFunctionMode):
    """Calls that torch.export cannot trace, while a model is traced:

    - `assert tensor` and `if tensor: raise …` are answered so that nothing is raised, and torch._check_tensor_all passes;
      other conditions are left to torch;
    - `generator=None` is taken out: torch.randn with it cannot have a dynamic size;
    - `torch.arange(2, 4).tolist()` gives its numbers (dimensions, in losses of MONAI);
    - torch.ctc_loss of `labels.masked_select(mask)` and `mask.sum(-1)` reads the labels padded (models of speech in
      transformers).
    """

    def __init__(self):
        super().__init__()
        self.lines: list[str] = []
        self.ranges: WeakIdKeyDictionary = WeakIdKeyDictionary()  # by what torch.arange gave
        self.selected: WeakIdKeyDictionary = WeakIdKeyDictionary()  # by what masked_select gave: tensor and mask
        self.counted: WeakIdKeyDictionary = WeakIdKeyDictionary()  # by what mask.sum(-1) gave: mask

    def __torch_function__(self, func, types, args=(), kwargs=None):
        asks = func is torch.Tensor.__bool__ or (func is torch.Tensor.item and args[0].dtype is torch.bool)
        if asks and isinstance(args[0], FakeTensor) and args[0].constant is None:
            frame = user_frame(sys._getframe(1))
            answer = answer_without_raise(frame) if frame else None
            if answer is not None:
                self.note(frame)
                return answer
        kwargs = dict(kwargs or {})
        if kwargs.get("generator", self) is None:
            del kwargs["generator"]
        if func is F.ctc_loss and len(args) >= 4 and args[1] in self.selected:
            labels, mask = self.selected[args[1]]
            if labels.shape == mask.shape and self.counted.get(args[3]) is mask:
                args = (args[0], padded(labels, mask), *args[2:])
        result = func(*args, **kwargs)
        if func in (torch.masked_select, torch.Tensor.masked_select) and len(args) == 2 and args[0].dim() == 2:
            self.selected[result] = args
        if func is torch.Tensor.sum and args[1:] in ((-1,), (1,)) and args[0].dim() == 2 and args[0].dtype is torch.bool:
            self.counted[result] = args[0]
        if func is torch.arange and args and all(type(n) is int for n in args) and not kwargs:
            self.ranges[result] = range(*args)
        return result

    def known_list(self, tolist: Callable) -> Callable:
        """FakeTensor.tolist, but the numbers themselves of a range that nothing has written to."""

        def replaced(tensor):
            known = tensor in self.ranges and tensor._version == 0
            return list(self.ranges[tensor]) if known else tolist(tensor)

        return replaced

    def all_true(self, cond, message=None):
        """In place of torch._check_tensor_all, which would compute in each step what nobody looks at."""
        frame = user_frame(sys._getframe(1))
        while frame and "check" in frame.f_code.co_name and frame.f_back:  # a function that checks for others
            frame = user_frame(frame.f_back)
        if frame:
            self.note(frame)

    def note(self, frame) -> None:
        place = line_text(frame.f_code.co_filename, frame.f_lineno)
        if place not in self.lines:
            self.lines.append(place)


def padded(labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Each row's selected labels at its beginning, and zeros behind them."""
    order = torch.argsort(~mask, dim=1, stable=True)
    return torch.where(mask, labels, 0).gather(1, order)


def user_frame(frame):
    """The frame, or the first around it, of a user's file."""
    while frame and not is_user_file(frame.f_code.co_filename):  # the modes of torch.export itself
        frame = frame.f_back
    return frame


def answer_without_raise(frame) -> bool | None:
    """The truth value that does not lead straight to a `raise`, where the frame's jump has one."""
    code = list(dis.get_instructions(frame.f_code))
    at = next((i for i, instruction in enumerate(code) if instruction.offset == frame.f_lasti), None)
    if at is None:
        return None
    if code[at].opname.startswith("CALL"):  # of item(), whose result the jump takes
        at += 1
    while code[at].opname in ("TO_BOOL", "CACHE"):
        at += 1
    name = code[at].opname
    if "JUMP" not in name or not name.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    target = next((i for i, instruction in enumerate(code) if instruction.offset == code[at].argval), None)
    if leads_to_raise(code, at + 1):
        return name.endswith("IF_TRUE")
    if target is not None and leads_to_raise(code, target):
        return name.endswith("IF_FALSE")
    return None


def leads_to_raise(code: list, at: int) -> bool:
    for instruction in code[at:]:
        if instruction.opname == "RAISE_VARARGS":
            return True
        if "JUMP" in instruction.opname or instruction.opname.startswith(("RETURN", "FOR_ITER", "STORE", "RERAISE")):
            return False
    return False


# -- After tracing ------------------------------------------------------------------------------------------------------


def mend_program(program: torch.export.ExportedProgram) -> list[str]:
    """Mends all graphs of the program in place; a program that needs nothing is not touched."""
    lines = []
    modules = [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    regions = sum(resolve_vmap(module) for module in modules)
    if regions:
        lines.append(f"torch.vmap is resolved into plain operators ({regions} region{'s' if regions > 1 else ''})")
    replaced: dict[str, list[torch.fx.Node]] = {}
    reached = needs_gradient(program)
    for module in modules:
        for name, node in replace_python_operators(module, reached):
            replaced.setdefault(name, []).append(node)
    for module in modules:
        leave_out_unread_selections(module.graph)
        if module.graph.eliminate_dead_code(has_effect):
            module.recompile()
    for name, nodes in replaced.items():
        how = KNOWN.get(name)
        what = f"becomes {how}" if how else "is replaced by the operators it is made of"
        times = "1 time" if len(nodes) == 1 else f"{len(nodes)} times"
        lines.append(f"operator {name}, registered in Python ({times}), {what}")
    return lines


def leave_out_unread_selections(graph: torch.fx.Graph) -> None:
    """A masked_select of which only the length is read, and that only to assert that it is one."""
    for selected in graph.find_nodes(op="call_function", target=torch.ops.aten.masked_select.default):
        reads = [selected]
        for node in reads:  # grows
            reads += [user for user in node.users if user not in reads]
        leaves = [node for node in reads if not node.users]
        sizes = [node for node in reads[1:] if node not in leaves]
        asserts = all(node.target is torch.ops.aten._assert_scalar.default for node in leaves)
        if len(leaves) and asserts and all(not isinstance(node.meta.get("val"), torch.Tensor) for node in sizes):
            for node in leaves:
                graph.erase_node(node)


def has_effect(node: torch.fx.Node) -> bool:
    """Whether a node does something beside its result."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        names = [a.target for a in node.args if isinstance(a, torch.fx.Node) and a.op == "get_attr"]
        bodies = [getattr(node.graph.owning_module, name) for name in names]
        return any(has_effect(inner) for body in bodies for inner in body.graph.nodes if inner.op == "call_function")
    if node.target in (torch.ops.aten.batch_norm.default, torch.ops.aten.instance_norm.default):
        return node.args[3] is not None  # running statistics are written, which the schema does not say
    return node.is_impure()


def functorch_name(node: torch.fx.Node) -> str | None:
    inner = node.op == "call_function" and getattr(node.target, "__module__", "") == "torch._functorch.predispatch"
    return node.target.__name__ if inner else None


def resolve_vmap(module: torch.fx.GraphModule) -> int:
    """Traces each region of torch.vmap again below functorch; the number of regions."""
    regions: list[list[torch.fx.Node]] = []
    depth, found = 0, False
    for node in list(module.graph.nodes):
        name = functorch_name(node)
        found |= name is not None
        if name == "lazy_load_decompositions":
            module.graph.erase_node(node)
            continue
        if name is not None and name not in VMAP:
            raise MendError(
                f"operator {name} at {made_at(node)} belongs to a transform of torch.func that only Python runs: "
                "compute the derivative with autograd or by hand"
            )
        if name == "_vmap_increment_nesting":
            if depth == 0:
                regions.append([])
            depth += 1
        if depth > 0:
            regions[-1].append(node)
        if name == "_vmap_decrement_nesting":
            depth -= 1
    for region in regions:
        inline(module, region, lambda node, args, kwargs: node.target(*args, **kwargs), pre_dispatch=False)
    if found:
        module.recompile()
    return len(regions)


VMAP = {"_vmap_increment_nesting", "_vmap_decrement_nesting", "_add_batch_dim", "_remove_batch_dim"}

# Operators that packages register in Python though libtorch has the same, gradient included.
KNOWN = {"transformers::grouped_mm_fallback": "aten::_grouped_mm"}


def inline(module: torch.fx.GraphModule, region: list[torch.fx.Node], call: Callable, *, pre_dispatch: bool) -> None:
    """Puts in the region's place what torch calls when `call(node, args, kwargs)` runs each of its nodes: the operators of
    the user's code with `pre_dispatch`, else those that torch makes of them."""
    inside = set(region)
    inputs = list(dict.fromkeys(i for node in region for i in node.all_input_nodes if i not in inside))
    outputs = [node for node in region if any(user not in inside for user in node.users)]
    at = next((node for node in region if node.meta.get("stack_trace")), region[0])

    def body(*values):
        env = dict(zip(inputs, values))
        for node in region:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: env[n])
            env[node] = call(node, args, kwargs)
        return [env[node] for node in outputs]

    try:
        with torch.no_grad():
            traced = make_fx(body, pre_dispatch=pre_dispatch)(*(node.meta["val"] for node in inputs))
    except Exception as error:  # tracing raises many types
        raise MendError(
            f"operator {region[0].target} at {made_at(at)} cannot be replaced by operators of libtorch: "
            + (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        ) from error
    traced.graph.eliminate_dead_code()
    env = dict(zip([n for n in traced.graph.nodes if n.op == "placeholder"], inputs))
    with module.graph.inserting_before(region[0]):
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "output":
                results = node.args[0]
                break
            if node.op != "call_function" or node.target is torch._C._set_grad_enabled:
                what = "holds a tensor of its own" if node.op != "call_function" else "switches gradients on or off"
                raise MendError(f"operator {region[0].target} at {made_at(at)} cannot be replaced: it {what}")
            copy = module.graph.node_copy(node, lambda n: env[n])
            for key in ("stack_trace", "nn_module_stack"):
                if key in at.meta:
                    copy.meta[key] = at.meta[key]
            env[node] = copy
    for node, result in zip(outputs, results):
        if isinstance(result, torch.fx.Node):
            node.replace_all_uses_with(env[result], propagate_meta=False)
        else:  # several outputs: each is taken out by its number
            for user in list(node.users):
                user.replace_all_uses_with(env[result[user.args[1]]])
                module.graph.erase_node(user)
    for node in reversed(region):
        module.graph.erase_node(node)


def is_registered_in_python(target: Any) -> bool:
    """Whether an operator's schema came from Python: libtorch alone does not have it."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace in ("aten", "_operator"):
        return False
    name = target._schema.name + ("." + target._schema.overload_name if target._schema.overload_name else "")
    return any(line.startswith("debug:") and ".py:" in line for line in torch._C._dispatch_dump(name).splitlines())


def needs_gradient(program: torch.export.ExportedProgram) -> set[torch.fx.Node]:
    """The nodes of all graphs that a gradient may flow into: what a trained parameter leads to."""
    reached: set[torch.fx.Node] = set()
    trained = {
        name
        for name, parameter in program.graph_signature.inputs_to_parameters.items()
        if program.state_dict[parameter].requires_grad
    }

    def walk(module: torch.fx.GraphModule, flows: list[bool]) -> None:
        flows_in = iter(flows)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                flow = next(flows_in)
            else:
                flow = any(i in reached for i in node.all_input_nodes)
            if flow:
                reached.add(node)
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                bodies = [a for a in node.args if isinstance(a, torch.fx.Node) and a.op == "get_attr"]
                for body in bodies:
                    rest = node.args[node.args.index(body) + 1 :]
                    walk(getattr(module, body.target), [isinstance(a, torch.fx.Node) and a in reached for a in rest])

    walk(program.graph_module, [n.name in trained for n in program.graph.nodes if n.op == "placeholder"])
    return reached


def replace_python_operators(module: torch.fx.GraphModule, reached: set[torch.fx.Node]) -> list:
    """(operator, node) of each operator registered in Python, replaced by what libtorch has."""
    replaced = []
    for node in list(module.graph.nodes):
        if node.op != "call_function" or not is_registered_in_python(node.target):
            continue
        name = node.target._schema.name
        known = KNOWN.get(name)
        if known is not None and node.args[0].meta["val"].dtype is not torch.float64:  # which libtorch's has not
            namespace, _, operator = known.partition("::")
            packet = getattr(getattr(torch.ops, namespace), operator, None)
            if packet is not None:
                node.target = packet.default
                replaced.append((name, node))
                continue
        call = implementation(node, reached)
        inline(module, [node], call or composite, pre_dispatch=call is not None)
        replaced.append((name, node))
    if replaced:
        module.recompile()
    return replaced


def composite(node: torch.fx.Node, args: tuple, kwargs: dict) -> Any:
    return node.target.decompose(*args, **kwargs)


def implementation(node: torch.fx.Node, reached: set[torch.fx.Node]) -> Callable | None:
    """What runs an operator's Python code in its place; none for one that torch itself takes apart below autograd."""
    name = node.target._schema.name
    definition = torch._library.custom_ops._maybe_get_opdef(name)
    if definition is None:
        if not node.target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
            raise MendError(
                f"operator {name} at {made_at(node)} is registered in Python, where nobody but Python can call it: write "
                "it with torch functions, or register it in C++"
            )
        return None
    if definition._backward_fn is not None and any(i in reached for i in node.all_input_nodes):
        raise MendError(
            f"operator {name} at {made_at(node)} has a gradient written in Python (register_autograd), which libtorch "
            "cannot call: write operator and gradient with torch functions, or register them in C++"
        )
    return lambda _, args, kwargs: definition._init_fn(*args, **kwargs)


# -- For those who read the file ------------------------------------------------------------------------------------------


def operator_facts(program: torch.export.ExportedProgram) -> dict:
    """What a reader without torch cannot know of operators outside aten, by "namespace::name.overload": the arguments that
    are written, for each output the arguments whose memory it shares, and whether random numbers are drawn."""
    facts = {}
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            target = node.target
            if not isinstance(target, torch._ops.OpOverload) or target.namespace == "aten":
                continue
            schema = target._schema
            facts[f"{schema.name}.{schema.overload_name or 'default'}"] = {
                "writes": [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write],
                "shares": [
                    [a.name for a in schema.arguments if shares_memory(a.alias_info, result.alias_info)]
                    for result in schema.returns
                ],
                "random": torch.Tag.nondeterministic_seeded in target.tags,
            }
    return dict(sorted(facts.items()))


def shares_memory(argument: Any, result: Any) -> bool:
    return bool(argument and result and set(argument.before_set) & (set(result.before_set) | set(result.after_set)))
