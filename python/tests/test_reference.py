import json
import zipfile
from pathlib import Path

import make_fixtures
import pytest
import torch
from safetensors.torch import load_file

import espalier_parity as parity
import espalier_reference as reference
import export as examples

FOLDER = Path(make_fixtures.__file__).parent
CASES = [(name, stem) for name in make_fixtures.FIXTURES for stem in (name, f"{name}.two")]


def relative_errors(actual: dict, expected: dict) -> dict:
    """|difference| / max(|expected|, 1e-3 |all expected|), by name."""
    floor = 1e-3 * parity.total({n: parity.norm(g) for n, g in expected.items()})
    return {n: parity.norm(actual[n] - g) / max(parity.norm(g), floor) for n, g in expected.items()}


def test_key_depends_on_every_part():
    base = reference.key(7, 0, 0, 5)
    assert base == 7209587471452788469  # the same number is in gpt.expected.json
    others = {reference.key(8, 0, 0, 5), reference.key(7, 1, 0, 5), reference.key(7, 0, 1, 5), reference.key(7, 0, 0, 6)}
    assert len(others | {base}) == 5
    assert all(0 <= k < 2**63 for k in others)


def nudged(path: Path, seed: int) -> torch.export.ExportedProgram:
    """The program, each of its parameters one unit in the last place off."""
    program = torch.export.load(path)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in program.graph_signature.parameters:
            parameter = program.state_dict[name]
            up = torch.rand(parameter.shape, generator=generator) < 0.5
            parameter.copy_(torch.nextafter(parameter, torch.where(up, torch.inf, -torch.inf).to(parameter.dtype)))
    return program


@pytest.mark.parametrize("name, stem", CASES, ids=[stem for _, stem in CASES])
def test_expected_files_reproduce(name, stem):
    facts = json.loads((FOLDER / f"{stem}.expected.json").read_text())
    stored = load_file(FOLDER / f"{stem}.expected.safetensors")
    inputs = {n: stored[f"input.{n}"] for n in facts["inputs"]}

    def run(program):
        return reference.run_step(program, inputs, micro_batches=facts["micro_batches"], seed=facts["seed"])

    step = run(torch.export.load(FOLDER / f"{name}.pt2"))
    # By the measure of docs/semantics.md: another processor wrote them.
    allowed = max(parity.allowed(1e-5, gradient) for gradient in step.gradients.values())
    assert step.loss == pytest.approx(float.fromhex(facts["loss_hex"]), rel=allowed)
    gradients = {n: stored[f"grad.{n}"] for n in facts["gradients"]}
    buffers = {n: stored[f"buffer.{n}"] for n in facts["buffers"]}

    def beyond(explained=()):
        """What is further from the stored values than allowed, and than four times as far as runs that rounding explains."""
        far = [relative_errors(other.gradients, step.gradients) for other in explained]
        errors = relative_errors(step.gradients, gradients)
        found = {n: e for n, e in errors.items() if e > max([allowed, *(4 * each[n] for each in far)])}
        for n, right in buffers.items():
            strays = [4 * parity.norm(other.buffers[n] - step.buffers[n]) for other in explained]
            distance = parity.norm(step.buffers[n] - right)
            if distance > max([allowed * parity.norm(right), *strays]):
                found[n] = distance
        return found

    if beyond():  # some models make much of every rounding
        controls = [run(nudged(FOLDER / f"{name}.pt2", seed)) for seed in (1, 2)]
        assert not beyond(controls)


def flat_json_targets(graph: dict) -> list[str]:
    """What a reader of models/model.json numbers: sub-graphs stand in place of the node that wraps them."""
    targets = []
    for node in graph["nodes"]:
        inner = [i["arg"]["as_graph"]["graph"] for i in node["inputs"] if "as_graph" in i["arg"]]
        targets += flat_json_targets(inner[0]) if inner else [node["target"]]
    return targets


@pytest.mark.parametrize("name", make_fixtures.FIXTURES)
def test_operator_index_is_the_position_in_the_file(name):
    path = FOLDER / f"{name}.pt2"
    with zipfile.ZipFile(path) as archive:
        graph = json.loads(archive.read(f"{name}/models/model.json"))["graph_module"]["graph"]
    flat = reference.flat_operators(torch.export.load(path).graph_module)
    assert [t.split(".")[-2:] for t in flat_json_targets(graph)] == [str(n.target).split(".")[-2:] if
            isinstance(n.target, torch._ops.OpOverload) else ["_operator", n.target.__name__] for n in flat]


def test_fixtures_name_no_folder_of_the_machine_that_made_them():
    for path in FOLDER.glob("*.pt2"):
        with zipfile.ZipFile(path) as archive:
            nodes = archive.read(f"{path.stem}/models/model.json").decode()
        assert 'File \\"/' not in nodes, path


@pytest.mark.parametrize("name", ["two_tower", "three_branch", "gpt", "resnet", "dlrm", "unet"])
def test_without_dropout_the_program_equals_the_model(tmp_path, name):
    # Eval mode has no random numbers, so the eager model is a second, independent reference.
    examples.export_model(name, tmp_path / "m.pt2", batch=5, mode="eval")
    module = __import__(name)
    torch.manual_seed(0)
    model = module.build("tiny").eval()
    inputs, targets = module.example_inputs(model, 4)
    loss_function = examples.espalier_export.find_loss(module.loss)
    loss = loss_function(model(**inputs), *targets.values())
    loss.backward()
    step = reference.run_step(torch.export.load(tmp_path / "m.pt2"), inputs | targets, micro_batches=1, seed=1)
    assert step.loss == pytest.approx(loss.item(), rel=1e-6)
    errors = relative_errors(step.gradients, {n: p.grad for n, p in model.named_parameters()})
    assert max(errors.values()) <= 1e-5, errors
