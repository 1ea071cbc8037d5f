"""The oracle's own tests: it finds nothing in a run of PyTorch's, and each mistake that is planted in one.

tests/parity/parity.py uses it on real runs of the program.
"""

import dataclasses
import json
import math

import make_fixtures
import pytest
import torch
from safetensors.torch import save_file

import espalier_parity as parity

FIXTURES = make_fixtures.HERE
OPTIMIZER = {"kind": "adamw", "learning_rate": 1e-3, "momentum": 0.0, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8,
             "weight_decay": 0.1}  # fmt: skip


def plan_of(name, **changes):
    return parity.Plan(path=FIXTURES / "plan.json", model=FIXTURES / f"{name}.pt2", seed=3, batch=4, micro_batch=2,
                       optimizer=OPTIMIZER | changes, frozen=[], replicated=[])  # fmt: skip


def record_of_pytorch(plan, folder, steps=3):
    """What `espalier run --record` would write, by ExportedProgram.module() and torch.optim; for models without
    random operators."""
    program = torch.export.load(plan.model)
    module = program.module()
    o = plan.optimizer
    optimizer = torch.optim.AdamW(module.parameters(), lr=o["learning_rate"], weight_decay=o["weight_decay"])
    names = [s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    examples = dict(zip(names, torch.utils._pytree.tree_leaves(program.example_inputs)))
    generator = torch.Generator().manual_seed(plan.seed)
    for step in range(steps):
        inputs = {n: t[torch.randint(len(t), (plan.batch,), generator=generator)].contiguous() for n, t in examples.items()}
        optimizer.zero_grad()
        losses = []
        for j in range(plan.micro_batches):
            part = {n: t[j * plan.micro_batch : (j + 1) * plan.micro_batch].clone() for n, t in inputs.items()}
            args, kwargs = torch.utils._pytree.tree_unflatten(list(part.values()), program.call_spec.in_spec)
            loss = module(*args, **kwargs)
            losses.append(loss.item())
            (loss / plan.micro_batches).backward()
        tensors = {f"input.{n}": t for n, t in inputs.items()}
        tensors |= {f"gradient.{n}": p.grad.clone() for n, p in module.named_parameters()}
        norm = parity.total({n: parity.norm(p.grad) for n, p in module.named_parameters()})
        optimizer.step()
        tensors |= {f"state.{n}": t.detach().clone() for n, t in module.state_dict().items()}
        save_file({n: t.contiguous() for n, t in tensors.items()}, folder / f"step{step}.safetensors",
                  {"loss": repr(sum(losses) / len(losses)), "gradient_norm": repr(norm)})


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resnet")
    plan = plan_of("resnet")
    record_of_pytorch(plan, folder)
    return plan, folder


def tampered(folder, target, name, change):
    """The record with one tensor of the second step changed."""
    target.mkdir()
    for file in folder.iterdir():
        tensors, texts = parity.read_safetensors(file)
        if file.stem == "step1":
            tensors[name] = change(tensors[name])
        save_file({n: t.contiguous() for n, t in tensors.items()}, target / file.name, texts)
    return target


def found(report):
    return {(d.what, d.name, d.step) for d in report.differences}


def test_a_run_of_pytorch_itself_is_equal_to_the_bit(resnet):
    report = parity.check_run(*resnet)
    assert report.equal, parity.verdict(report, 1e-5)
    assert report.forward_backward_bits and report.update_bits
    assert (report.gradients, report.buffers) == (20, 18)
    assert [s.loss for s in report.steps] == [s.alone_loss for s in report.steps]


@pytest.mark.parametrize("kind", ["gradient", "state"])
def test_one_changed_tensor_is_named_with_its_step(resnet, tmp_path, kind):
    plan, folder = resnet
    name = next(n for n in plan_parameters(plan) if n.endswith("weight"))
    report = parity.check_run(plan, tampered(folder, tmp_path / "r", f"{kind}.{name}", lambda t: t * 1.0001))
    what = {"gradient": "gradient", "state": "parameter"}[kind]
    assert (what, name, 1) in found(report)
    assert not any(d.step == 0 for d in report.differences)


def plan_parameters(plan):
    return parity.Trainer(torch.export.load(plan.model), plan, 1).parameters


def test_a_number_that_is_none_differs(resnet, tmp_path):
    plan, folder = resnet
    name = next(iter(plan_parameters(plan)))
    report = parity.check_run(plan, tampered(folder, tmp_path / "r", f"gradient.{name}", lambda t: t * math.nan))
    assert ("gradient", name, 1) in found(report)


def test_a_buffer_that_was_updated_twice_is_named(resnet, tmp_path):
    plan, folder = resnet
    counter = next(n for n in torch.export.load(plan.model).state_dict if n.endswith("num_batches_tracked"))
    report = parity.check_run(plan, tampered(folder, tmp_path / "r", f"state.{counter}", lambda t: t + 1))
    assert ("buffer", counter, 1) in found(report)


@pytest.mark.parametrize(
    "change",
    [{"learning_rate": 1.01e-3}, {"beta1": 0.89}, {"beta2": 0.99}, {"epsilon": 1e-5}, {"weight_decay": 0.0},
     {"kind": "adam"}, {"kind": "sgd"}, {"no_decay": ["*.weight"]},
     {"schedule": {"shape": "linear", "warm_up": 0, "steps": 300}}],
    ids=str,
)  # fmt: skip
def test_an_update_by_other_settings_differs_in_parameters_alone(resnet, change):
    plan, folder = resnet
    report = parity.check_run(dataclasses.replace(plan, optimizer=plan.optimizer | change), folder)
    assert {d.what for d in report.differences} == {"parameter"}


def test_gradients_that_were_not_clipped_differ(resnet):
    plan, folder = resnet
    report = parity.check_run(dataclasses.replace(plan, optimizer=plan.optimizer | {"clip_norm": 0.1}), folder)
    assert {d.what for d in report.differences} == {"gradient"}  # the norm is told as it was before


def test_a_frozen_parameter_that_moved_differs(resnet):
    plan, folder = resnet
    name = next(iter(plan_parameters(plan)))
    report = parity.check_run(dataclasses.replace(plan, frozen=[name]), folder)
    assert ("parameter", name, 0) in found(report)


def test_other_micro_batches_differ(resnet):
    plan, folder = resnet
    assert "loss" in {d.what for d in parity.check_run(dataclasses.replace(plan, micro_batch=4), folder).differences}


def test_samples_must_come_from_the_data_and_once_in_an_epoch(tmp_path):
    plan = plan_of("resnet")
    (tmp_path / "run").mkdir()
    record_of_pytorch(plan, tmp_path / "run", steps=2)
    files = [tmp_path / "run" / f"step{k}.safetensors" for k in range(2)]
    records = [parity.read_safetensors(file)[0] for file in files]
    batches = [{n.removeprefix("input."): t for n, t in r.items() if n.startswith("input.")} for r in records]

    def findings(parts):
        whole = {n: torch.cat([p[n] for p in parts]) for n in parts[0]}
        save_file(whole, tmp_path / "data.safetensors")
        report = parity.Report("")
        parity.check_samples(report, tmp_path / "data.safetensors", files, plan.batch)
        return [(d.what, d.step) for d in report.differences]

    assert findings(batches) == []
    assert findings([batches[0], batches[0]]) == [("samples", 1)]
    assert findings([{n: t + 1 for n, t in batches[0].items()}, batches[1]]) == [("samples", 0)]


@pytest.mark.parametrize("warm_up", [0, 3])
@pytest.mark.parametrize("shape", ["constant", "linear", "cosine"])
def test_schedules_are_those_of_the_transformers_package(shape, warm_up):
    transformers = pytest.importorskip("transformers")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    if shape == "constant":
        theirs = transformers.get_constant_schedule_with_warmup(optimizer, warm_up)
    else:
        theirs = getattr(transformers, f"get_{shape}_schedule_with_warmup")(optimizer, warm_up, 10)
    for step in range(11):
        mine = parity.schedule_factor({"shape": shape, "warm_up": warm_up, "steps": 10}, step)
        assert mine == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


def test_patterns_have_stars_only():
    assert parity.matches(["*.bias"], ["head.weight", "tied.bias"])
    assert not parity.matches(["head.?eight", "head", "[h]ead.weight"], ["head.weight"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64, torch.bool, torch.int64])
def test_safetensors_of_every_type_are_read(tmp_path, dtype):
    tensors = {"x": torch.arange(6).view(2, 3).to(dtype), "none": torch.zeros(0, 2, dtype=dtype), "one": torch.ones((), dtype=dtype)}
    save_file(tensors, tmp_path / "t.safetensors", {"a": "b"})
    read, texts = parity.read_safetensors(tmp_path / "t.safetensors")
    assert texts == {"a": "b"} and all(torch.equal(read[n], t) and read[n].dtype == dtype for n, t in tensors.items())


@pytest.mark.parametrize("text", ["", "{}", json.dumps({"stages": []})])
def test_what_is_no_plan_is_refused_in_one_line(tmp_path, capsys, text):
    (tmp_path / "plan.json").write_text(text)
    assert parity.main([str(tmp_path / "plan.json")]) == 2
    assert "not a plan file" in capsys.readouterr().err
