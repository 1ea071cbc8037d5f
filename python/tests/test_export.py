import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import sample_models
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import espalier_export
import espalier_reference
from espalier_export import ExportError, export

X = torch.randn(8, 4)
LABEL = torch.randint(3, (8,))


def export_classifier(path, model=None, **options):
    return export(model or sample_models.Classifier(), (X,), path, loss="cross_entropy",
                  targets={"label": LABEL}, **options)


def read_json(path: Path, entry: str) -> dict:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(f"{path.stem}/{entry}"))


def one_line(capsys) -> str:
    text = capsys.readouterr().err
    assert text.count("\n") == 1, text
    return text


def test_parameters_keep_the_models_own_names(tmp_path):
    model = sample_models.Classifier()
    program = export_classifier(tmp_path / "m.pt2", model).program
    assert list(program.graph_signature.parameters) == [name for name, _ in model.named_parameters()]


def test_saved_tensors_load_back_into_the_model(tmp_path):
    model = sample_models.Classifier()
    export_classifier(tmp_path / "m.pt2", model)
    loaded = torch.export.load(tmp_path / "m.pt2")
    save_file(dict(loaded.state_dict), tmp_path / "m.safetensors")
    other = sample_models.Classifier()
    other.load_state_dict(load_file(tmp_path / "m.safetensors"))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))


def test_the_model_is_left_as_it_was(tmp_path):
    model = sample_models.Classifier().eval()
    before = dict(model.__dict__)
    export_classifier(tmp_path / "m.pt2", model, mode="train")
    assert type(model) is sample_models.Classifier
    assert model.__dict__ == before
    assert not any(m.training for m in model.modules())


def test_module_paths_and_source_lines_are_the_users(tmp_path):
    export_classifier(tmp_path / "m.pt2")
    nodes = read_json(tmp_path / "m.pt2", "models/model.json")["graph_module"]["graph"]["nodes"]
    linear = next(n for n in nodes if n["target"].startswith("torch.ops.aten.linear"))
    assert "layers.0" in linear["metadata"]["nn_module_stack"]
    first_line = linear["metadata"]["stack_trace"].splitlines()[0]
    assert 'File "sample_models.py", line' in first_line


def test_the_batch_is_dynamic_from_two(tmp_path):
    metadata = export_classifier(tmp_path / "m.pt2").metadata
    assert metadata["batch"] == {"kind": "dynamic", "min": 2, "example": 8}
    ranges = read_json(tmp_path / "m.pt2", "models/model.json")["range_constraints"]
    assert [r["min_val"] for r in ranges.values()] == [2]


def test_a_model_that_fixes_its_batch_falls_back_with_one_line(tmp_path, capsys):
    metadata = export_classifier(tmp_path / "m.pt2", sample_models.FixedBatch()).metadata
    assert metadata["batch"] == {"kind": "fixed", "size": 8}
    assert "FixedBatch is exported for micro-batches of 8 only: " in one_line(capsys)


@pytest.mark.parametrize(
    "guard, within, fits",
    [
        ("(12*L['kwargs']['x'].size()[0]*min(32, 384*L['x'].size()[0])) == (384*L['x'].size()[0])", (2, None), (2, None)),
        ("Mod(8*L['x'].size()[0], 4) == 0", (2, 40), (2, 40)),
        ("L['x'].size()[0] <= 512", (2, None), (2, 512)),
        ("2 <= L['x'].size()[0] and L['x'].size()[0] <= 63", (2, None), (2, 63)),
        ("L['x'].size()[0] >= 5", (2, 63), (5, 63)),
        ("L['x'].size()[0] == 8", (2, None), None),
        ("unknown(L['x'].size()[0])", (2, None), None),
    ],
)
def test_batches_for_which_all_conditions_hold_are_found(guard, within, fits):
    text = f"Constraints violated (batch)!\n  - Not all values of batch satisfy the generated guard {guard}"
    assert espalier_export.batches_that_fit(ValueError(text), 8, within) == fits
    assert espalier_export.batches_that_fit(ValueError(text + "."), 8, within) == fits
    assert espalier_export.batches_that_fit(ValueError(text + "\n  - You marked batch as dynamic"), 8, within) is None
    assert espalier_export.batches_that_fit(ValueError("something else"), 8, within) is None


class LargeBatches(sample_models.Classifier):
    """As upsampling of diffusers: other code from a batch of 64 on."""

    def forward(self, x):
        return super().forward(x.contiguous() * 1.0 if x.shape[0] >= 64 else x)


def test_batches_that_take_another_way_through_the_code_are_left_out(tmp_path, capsys):
    metadata = export_classifier(tmp_path / "m.pt2", LargeBatches()).metadata
    assert metadata["batch"] == {"kind": "dynamic", "min": 2, "max": 63, "example": 8}
    assert "LargeBatches is exported for batches from 2 to 63: others take another way" in one_line(capsys)
    ranges = read_json(tmp_path / "m.pt2", "models/model.json")["range_constraints"]
    assert [(r["min_val"], r["max_val"]) for r in ranges.values()] == [(2, 63)]


def test_a_batch_of_one_is_fixed_with_one_line(tmp_path, capsys):
    metadata = export(sample_models.Classifier(), (X[:1],), tmp_path / "m.pt2", loss="cross_entropy",
                      targets={"label": LABEL[:1]}).metadata
    assert metadata["batch"] == {"kind": "fixed", "size": 1}
    assert "2 or more is needed" in one_line(capsys)


def test_a_batch_that_must_be_dynamic_is_refused_otherwise(tmp_path):
    with pytest.raises(ExportError, match="cannot have a dynamic batch"):
        export_classifier(tmp_path / "m.pt2", sample_models.FixedBatch(), batch="dynamic")


def test_metadata_is_in_the_archive(tmp_path):
    exported = export_classifier(tmp_path / "m.pt2", mode="eval")
    stored = read_json(tmp_path / "m.pt2", "extra/espalier.json")
    assert stored == exported.metadata
    assert (stored["format"], stored["mode"], stored["inputs"], stored["targets"]) == (
        "espalier.export/1", "eval", ["x"], ["label"])


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_mode_decides_whether_dropout_draws(tmp_path, mode):
    program = export_classifier(tmp_path / "m.pt2", mode=mode).program
    (dropout,) = [n for n in program.graph.nodes if "dropout" in str(n.target)]
    assert dropout.args[2] is (mode == "train")


def test_a_dict_output_with_a_loss_needs_none(tmp_path):
    inputs = {"x": X, "labels": LABEL}
    program = export(sample_models.DictOutput(), inputs, tmp_path / "m.pt2", mode="eval").program
    assert [s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"] == ["x", "labels"]


def test_a_dict_output_without_a_loss_gives_its_logits(tmp_path):
    export(sample_models.DictOutput(), {"x": X}, tmp_path / "m.pt2", loss="cross_entropy", targets={"label": LABEL})
    with pytest.raises(ExportError, match="no 'scores': name one of loss, logits"):
        export(sample_models.DictOutput(), {"x": X}, tmp_path / "m.pt2", loss="cross_entropy", output="scores",
               targets={"label": LABEL})


class TwoHeads(sample_models.Classifier):
    def __init__(self, names):
        super().__init__()
        self.names = names

    def forward(self, x):
        return {name: (i + 1) * super(TwoHeads, self).forward(x) for i, name in enumerate(self.names)}


def test_the_only_tensor_of_a_dict_output_is_what_the_loss_reads(tmp_path):
    exported = export_classifier(tmp_path / "m.pt2", TwoHeads(["sample"]))
    assert exported.program.graph_signature.user_outputs


def test_a_loss_function_reads_all_of_a_dict_output(tmp_path):
    def loss(out, label):
        return nn.functional.cross_entropy(out["a"], label) + out["b"].square().mean()

    export(TwoHeads(["a", "b"]), (X,), tmp_path / "m.pt2", loss=loss, targets={"label": LABEL})
    with pytest.raises(ExportError, match="has no 'logits': name one of a, b with --output"):
        export_classifier(tmp_path / "m.pt2", TwoHeads(["a", "b"]))


def test_a_loss_that_asks_a_tensor_for_the_whole_output_is_told(tmp_path):
    with pytest.raises(ExportError, match=r"asks for \.sample, but is called with one tensor.*let it read the tensor"):
        export(TwoHeads(["sample"]), (X,), tmp_path / "m.pt2", loss=lambda out, label: out.sample.mean() + label,
               targets={"label": LABEL})  # fmt: skip


def test_a_loss_module_does_not_join_the_modules_of_a_sequential(tmp_path):
    model = nn.Sequential(nn.Linear(4, 3))
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]), label_smoothing=0.1)
    exported = export(model, (X,), tmp_path / "m.pt2", loss=loss, targets={"label": LABEL})
    expected = loss(model(X), LABEL)
    torch.testing.assert_close(exported.program.module()(input=X, label=LABEL), expected)
    assert sorted(exported.program.state_dict) == ["0.bias", "0.weight", "loss.weight"]


def test_a_scripted_module_is_refused(tmp_path):
    with pytest.raises(ExportError, match="Linear is a TorchScript module: give the torch.nn.Module"):
        export(torch.jit.script(nn.Linear(4, 3)), (X,), tmp_path / "m.pt2", loss="cross_entropy", targets={"label": LABEL})


def test_a_loss_module_brings_its_own_parameters(tmp_path):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))

        def forward(self, outputs, target):
            return self.factor * nn.functional.cross_entropy(outputs, target)

    program = export(sample_models.Classifier(), (X,), tmp_path / "m.pt2", loss=Scaled(),
                     targets={"label": LABEL}).program
    assert "loss.factor" in program.graph_signature.parameters


def test_tied_weights_share_one_stored_tensor(tmp_path):
    tokens = torch.randint(10, (8,))
    program = export(sample_models.Tied(), (tokens,), tmp_path / "m.pt2", loss="cross_entropy",
                     targets={"label": tokens}).program
    config = read_json(tmp_path / "m.pt2", "data/weights/model_weights_config.json")["config"]
    assert config["embed.weight"]["path_name"] == config["head.weight"]["path_name"]
    state = espalier_reference.fresh_state(torch.export.load(tmp_path / "m.pt2"))
    assert state.tied == {"head.weight": "embed.weight"}
    assert list(program.graph_signature.parameters) == ["embed.weight", "head.weight"]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda p: export(sample_models.Classifier(), (X,), p), r"returns a tensor of shape \[.*3\], not a loss"),
        (lambda p: export(sample_models.Classifier(), (X,), p, loss=lambda y: y.sum(1)), "must be one number"),
        (lambda p: export(sample_models.Classifier(), (X,), p, loss=lambda y: y.argmax()), "must be floating-point"),
        (lambda p: export(sample_models.Classifier(), (X,), p, loss=lambda y: 3.0), "the loss is a float"),
        (lambda p: export(sample_models.Classifier(), (X,), p, loss="crossentropy"), "must be one of cross_entropy"),
        (lambda p: export(sample_models.Classifier(), (X, X), p), "do not fit Classifier.forward"),
        (lambda p: export(sample_models.Classifier(), {"y": X}, p), "do not fit Classifier.forward"),
        (lambda p: export(sample_models.Classifier(), (X,), p, targets={"x": X}, loss="mse"), "both an input"),
        (lambda p: export(sample_models.DictOutput(), (X,), p), "loss, logits and no loss"),
        (lambda p: export(sample_models.Classifier(), (X,), p.with_suffix(".pt")), "must end in .pt2"),
        (lambda p: export(sample_models.Classifier(), (X,), p.parent / "no" / "m.pt2"), "there is no folder"),
        (lambda p: export(sample_models.Classifier(), (X,), p, mode="test"), "must be one of train, eval"),
    ],
)
def test_messages_are_one_line(tmp_path, make, message):
    with pytest.raises(ExportError, match=message) as caught:
        make(tmp_path / "m.pt2")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "m.pt2").exists()


def test_command_line_writes_a_file(tmp_path):
    script = Path(espalier_export.__file__)
    done = subprocess.run(
        [sys.executable, script, "sample_models:make", "-o", tmp_path / "m.pt2", "--loss", "cross_entropy",
         "--set", "batch=4"],
        cwd=Path(__file__).parent, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"wrote {tmp_path}/m.pt2: Classifier, train mode, any batch from 2\n"
    assert read_json(tmp_path / "m.pt2", "extra/espalier.json")["batch"]["example"] == 4


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["no_such_module:make"], "cannot import no_such_module"),
        (["sample_models:nothing"], "has no 'nothing'"),
        (["sample_models"], "must be package.module:name"),
        (["sample_models:make_nothing"], "must return (model, inputs)"),
        (["sample_models:make", "--set", "size=4"], "does not take these settings"),
        (["sample_models:make", "--set", "size"], "must be name=value"),
        (["sample_models:make_fixed", "--loss", "cross_entropy", "--batch", "dynamic"], "cannot have a dynamic batch"),
    ],
)
def test_command_line_refuses_with_one_line_and_exit_2(tmp_path, capsys, arguments, message):
    assert espalier_export.main([*arguments, "-o", str(tmp_path / "m.pt2")]) == 2
    assert message in one_line(capsys)
