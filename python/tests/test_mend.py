"""What the exporter mends, what it refuses, and what it writes for readers without torch."""

import json
import types
import zipfile
from pathlib import Path

import pytest
import sample_models
import torch
from torch import nn

import espalier_mend
import espalier_reference
from espalier_export import ExportError, export

X = torch.randn(8, 4)
LABEL = torch.randint(3, (8,))
FIXTURES = Path(__file__).resolve().parents[2] / "tests" / "fixtures"


class WithForward(sample_models.Classifier):
    """A classifier whose input passes through `before`."""

    def __init__(self, before):
        super().__init__()
        self.before = before

    def forward(self, x):
        return super().forward(self.before(x))


def export_with(path, before, **options):
    options = {"mode": "eval", **options}
    return export(WithForward(before), (X,), path, loss="cross_entropy", targets={"label": LABEL}, **options)


def targets(exported) -> list[str]:
    graphs = [m.graph for m in exported.program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    return [str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_function"]


def equals_eager(exported, model, inputs=None):
    """The written program computes the model's own loss and gradients."""
    inputs = inputs or {"x": X, "label": LABEL}
    step = espalier_reference.run_step(exported.program, inputs, micro_batches=1, seed=1)
    model.eval()
    loss = nn.functional.cross_entropy(model(inputs["x"]), inputs["label"])
    loss.backward()
    assert step.loss == pytest.approx(loss.item(), rel=1e-6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(step.gradients[name], parameter.grad, rtol=1e-5, atol=1e-7)


def mended_lines(capsys) -> list[str]:
    return capsys.readouterr().err.splitlines()


WITH_UNREAD = ("gpt2", "llama")  # files of before such operators were left out
LOADABLE = sorted(path for path in FIXTURES.glob("*.pt2") if path.stem != "weightless")


@pytest.mark.parametrize("path", LOADABLE, ids=lambda path: path.stem)
def test_a_program_that_needs_nothing_is_not_touched(path):
    program = torch.export.load(path)
    before = str(program.graph_module.graph)
    assert espalier_mend.mend_program(program) == []
    after = str(program.graph_module.graph)
    assert (after == before) == (path.stem not in WITH_UNREAD)
    assert espalier_mend.mend_program(program) == []
    assert str(program.graph_module.graph) == after


class Layers(nn.Module):
    """Leaves out layers as BART does."""

    def __init__(self, layerdrop):
        super().__init__()
        self.layerdrop = layerdrop
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            if self.training:
                drawn = torch.rand([])
                if drawn < self.layerdrop:
                    continue
            x = layer(x)
        return x


@pytest.mark.parametrize("rate", [0.5, 0.0])
def test_layerdrop_is_off_and_the_model_keeps_it(tmp_path, capsys, rate):
    layers, rand = Layers(rate), torch.rand
    exported = export_with(tmp_path / "m.pt2", layers, mode="train")
    assert (layers.layerdrop, torch.rand) == (rate, rand)
    assert sum("linear" in target for target in targets(exported)) == 5
    off = ["espalier_export: WithForward: layerdrop is off (layerdrop 0.5): which operators run cannot depend on a "
           "random number"]  # fmt: skip
    assert mended_lines(capsys) == (off if rate else [])


def test_layerdrop_in_a_configuration_is_off_too(tmp_path, capsys):
    layers = Layers(0.5)
    layers.config = types.SimpleNamespace(encoder_layerdrop=0.25, apply_spec_augment=True, mask_time_prob=0.05)
    export_with(tmp_path / "m.pt2", layers, mode="train")
    assert vars(layers.config) == {"encoder_layerdrop": 0.25, "apply_spec_augment": True, "mask_time_prob": 0.05}
    first, second = mended_lines(capsys)
    assert "(encoder_layerdrop 0.25, layerdrop 0.5)" in first
    assert "SpecAugment is off" in second


def test_masks_of_specaugment_that_have_no_switch_are_off_too(tmp_path, capsys):
    layers = Layers(0)
    layers.config = types.SimpleNamespace(mask_time_prob=0.05, mask_feature_prob=0)
    export_with(tmp_path / "m.pt2", layers, mode="train")
    assert vars(layers.config) == {"mask_time_prob": 0.05, "mask_feature_prob": 0}
    (line,) = mended_lines(capsys)
    assert "SpecAugment is off" in line


def test_layerdrop_stays_as_it_is_in_eval_mode(tmp_path, capsys):
    export_with(tmp_path / "m.pt2", Layers(0.5), mode="eval")
    assert mended_lines(capsys) == []


class Mapped(nn.Module):
    """A mask by torch.vmap, as transformers makes them."""

    def forward(self, x):
        rows = torch.vmap(lambda row: torch.vmap(lambda column: column <= row)(torch.arange(4)))(torch.arange(4))
        return x @ rows.to(x.dtype)


def test_vmap_is_resolved(tmp_path, capsys):
    exported = export_with(tmp_path / "m.pt2", Mapped())
    assert not [target for target in targets(exported) if "aten" not in target and "getitem" not in target]
    assert "torch.vmap is resolved into plain operators" in mended_lines(capsys)[0]
    model = WithForward(Mapped())
    model.load_state_dict(exported.program.state_dict)
    equals_eager(exported, model)
    assert exported.metadata["batch"]["kind"] == "dynamic"


@torch.library.custom_op("espalier_test::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("espalier_test::halves", mutates_args=())
def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[:, :2].clone(), x[:, 2:].clone()


@torch.library.custom_op("espalier_test::rounded", mutates_args=())
def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.round()


@torch.library.custom_op("espalier_test::cut", mutates_args=())
def cut(x: torch.Tensor) -> torch.Tensor:
    return x * (1 if x.sum().item() > 0 else 2)


LIBRARY = torch.library.Library("espalier_test_library", "DEF")
LIBRARY.define("gated(Tensor x, float p) -> Tensor")
LIBRARY.impl("gated", lambda x, p: nn.functional.dropout(x * torch.sigmoid(x), p, training=True), "CompositeImplicitAutograd")
LIBRARY.define("opaque(Tensor x) -> Tensor")
LIBRARY.impl("opaque", lambda x: x + 1, "CPU")
LIBRARY.impl("opaque", torch.empty_like, "Meta")

for operator in (doubled, rounded, cut):
    operator.register_fake(torch.empty_like)
halves.register_fake(lambda x: (x.new_empty(x.shape[0], 2), x.new_empty(x.shape[0], 2)))
rounded.register_autograd(lambda context, gradient: gradient)


class Calls(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


def test_an_operator_registered_in_python_becomes_what_it_is_made_of(tmp_path, capsys):
    def before(x):
        left, right = halves(doubled(x))
        return torch.cat([right, left], 1)

    exported = export_with(tmp_path / "m.pt2", Calls(before))
    assert not [target for target in targets(exported) if "espalier_test" in target]
    lines = mended_lines(capsys)
    assert [line.split(": ")[2].split(",")[0] for line in lines] == [
        "operator espalier_test::doubled", "operator espalier_test::halves"]  # fmt: skip
    model = WithForward(Calls(before))
    model.load_state_dict(exported.program.state_dict)
    equals_eager(exported, model)


def test_a_composite_operator_becomes_the_operators_of_its_code(tmp_path):
    exported = export_with(tmp_path / "m.pt2", Calls(lambda x: torch.ops.espalier_test_library.gated(x, 0.5)))
    assert {"aten.sigmoid.default", "aten.bernoulli_.float"} <= set(targets(exported))
    assert not [name for name in targets(exported) if "espalier_test" in name]
    assert exported.metadata["batch"]["kind"] == "dynamic"


def test_an_operator_whose_code_only_python_knows_is_refused(tmp_path):
    with pytest.raises(ExportError, match=r"espalier_test_library::opaque at .*test_mend.py:\d+.*in Python, where nobody"):
        export_with(tmp_path / "m.pt2", Calls(torch.ops.espalier_test_library.opaque))


def test_an_operator_with_a_gradient_of_its_own_is_refused_where_a_gradient_flows(tmp_path):
    export_with(tmp_path / "m.pt2", Calls(rounded))  # of an input, which has none
    behind = nn.Sequential(nn.Linear(4, 4), Calls(rounded))
    with pytest.raises(ExportError, match=r"operator espalier_test::rounded at .*test_mend.py:\d+.*register_autograd"):
        export_with(tmp_path / "n.pt2", behind)
    assert not (tmp_path / "n.pt2").exists()


def test_an_operator_whose_code_depends_on_data_is_refused(tmp_path):
    with pytest.raises(ExportError, match=r"operator espalier_test.cut.* at .*test_mend.py:\d+") as caught:
        export_with(tmp_path / "m.pt2", Calls(cut))
    assert "\n" not in str(caught.value)


def test_grouped_products_of_transformers_become_those_of_libtorch(tmp_path, capsys):
    from transformers.integrations import moe  # noqa: F401

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 4, 4))

        def forward(self, x):
            ends = torch.tensor([3, 8], dtype=torch.int32)
            return torch.ops.transformers.grouped_mm_fallback(x, self.weight, ends)

    exported = export_with(tmp_path / "m.pt2", Experts(), batch="fixed")
    assert "aten._grouped_mm.default" in targets(exported)
    assert mended_lines(capsys)[0].endswith("registered in Python (1 time), becomes aten::_grouped_mm")
    model = WithForward(Experts())
    model.load_state_dict(exported.program.state_dict)
    equals_eager(exported, model)


def test_checks_of_the_data_are_left_out(tmp_path, capsys):
    exported = export_with(tmp_path / "m.pt2", sample_models.Checked())
    (line,) = mended_lines(capsys)
    assert line.startswith("espalier_export: WithForward: checks of the data are left out (")
    assert 'sample_models.py:' in line and line.endswith("and 4 more)")
    assert exported.metadata["mended"] == [line.removeprefix("espalier_export: WithForward: ")]
    assert targets(exported) == targets(export_with(tmp_path / "n.pt2", nn.Identity()))


class Unread(nn.Module):
    """Computes what nobody reads, and changes what somebody may."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.head(x).softmax(-1)
        self.norm(x)
        y = x + 1
        y[:, 0].add_(2)
        with torch.no_grad():
            self.calls.add_(1)
            x.exp()
        return y


def test_what_nobody_reads_is_left_out_unless_it_changes_something(tmp_path, capsys):
    exported = export_with(tmp_path / "m.pt2", Unread(), mode="train")
    assert mended_lines(capsys) == []
    names = [name.removeprefix("aten.").split(".")[0] for name in targets(exported)]
    assert not {"softmax", "exp"} & set(names) and names.count("linear") == 2  # the classifier's own
    state = espalier_reference.fresh_state(exported.program)
    espalier_reference.run_loss(exported.program, state, {"x": X, "label": LABEL}, seed=1, step=0, micro_batch=0)
    assert state.buffers["before.calls"].item() == 1
    assert state.buffers["before.norm.num_batches_tracked"].item() == 1
    torch.testing.assert_close(state.buffers["before.norm.running_mean"], 0.1 * X.mean(0))


class Moves(nn.Module):
    """Moves a part of itself to where it is, as the routers of transformers do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        self.inner = self.inner.to(torch.float32).to(x.device)
        return self.inner(x)


def test_a_module_may_be_moved_to_where_it_is(tmp_path, capsys):
    exported = export_with(tmp_path / "m.pt2", Moves())
    assert mended_lines(capsys) == []
    model = WithForward(Moves())
    model.load_state_dict(exported.program.state_dict)
    equals_eager(exported, model)


class Chooses(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


def test_a_configuration_may_be_no_object(tmp_path, capsys):
    model = sample_models.Classifier()
    model.config = {"layerdrop": 0.1}  # of segmentation_models_pytorch
    export(model, (X,), tmp_path / "m.pt2", loss="cross_entropy", targets={"label": LABEL})
    assert not mended_lines(capsys)


def test_a_generator_that_is_none_leaves_the_batch_dynamic(tmp_path, capsys):
    exported = export_with(tmp_path / "m.pt2", lambda x: x + torch.randn(x.shape, generator=None))
    assert exported.metadata["batch"]["kind"] == "dynamic"
    assert "aten.randn.default" in targets(exported)
    assert not mended_lines(capsys)


def test_numbers_of_a_range_are_known_until_somebody_writes_to_it(tmp_path):
    def dimensions(x):
        return x - x.mean(torch.arange(1, x.dim()).tolist(), keepdim=True)

    def written(x):
        numbers = torch.arange(0, x.dim())
        numbers += 1
        return x - x.mean(numbers.tolist()[:1], keepdim=True)

    model = WithForward(dimensions)
    exported = export(model, (X,), tmp_path / "m.pt2", loss="cross_entropy", targets={"label": LABEL}, mode="eval")
    equals_eager(exported, model)
    with pytest.raises(ExportError, match="known only when it runs"):
        export_with(tmp_path / "m.pt2", written)


class Speech(nn.Module):
    """A loss as the models of speech in transformers have it, or with padded targets."""

    def __init__(self, in_one_row):
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.in_one_row = in_one_row

    def forward(self, sound, labels):
        known = labels >= 0
        lengths = torch.full((sound.shape[0],), sound.shape[1])
        targets = labels.masked_select(known) if self.in_one_row else labels.clamp(min=0)
        log_probs = self.linear(sound).log_softmax(-1).transpose(0, 1)
        return nn.functional.ctc_loss(log_probs, targets, lengths, known.sum(-1))


@pytest.mark.parametrize("in_one_row", [False, True])
def test_ctc_loss_is_exported_with_padded_targets(tmp_path, in_one_row):
    model = Speech(in_one_row)
    sound = torch.randn(4, 20, 4)
    labels = torch.tensor([[1, 2, 3, -100], [4, 5, -100, -100], [1, 1, 1, 1], [2, -100, -100, -100]])
    exported = export(model, {"sound": sound, "labels": labels}, tmp_path / "m.pt2")
    assert exported.metadata["batch"]["kind"] == "dynamic"
    assert not any("masked_select" in target for target in targets(exported))
    other = torch.tensor([[3, -100, -100, -100], [4, 5, 1, -100]])
    torch.testing.assert_close(exported.program.module()(sound=sound[:2], labels=other), model(sound[:2], other))


def test_selected_labels_keep_their_order_wherever_they_stand():
    labels, mask = torch.tensor([[7, 8, 9], [4, 5, 6]]), torch.tensor([[False, True, True], [True, False, True]])
    assert espalier_mend.padded(labels, mask).tolist() == [[8, 9, 0], [4, 6, 0]]


def test_targets_of_ctc_loss_in_one_row_are_refused(tmp_path):
    class InOneRow(Speech):
        def forward(self, sound, labels):
            log_probs = self.linear(sound).log_softmax(-1).transpose(0, 1)
            lengths = torch.full((4,), 20)
            return nn.functional.ctc_loss(log_probs, labels.flatten(), lengths, (labels > 0).sum(-1))

    class OtherLengths(Speech):
        def forward(self, sound, labels):
            log_probs = self.linear(sound).log_softmax(-1).transpose(0, 1)
            some = labels.masked_select(labels > 0)
            return nn.functional.ctc_loss(log_probs, some, torch.full((4,), 20), torch.full((4,), 3))

    inputs = {"sound": torch.randn(4, 20, 4), "labels": torch.randint(1, 6, (4, 3))}
    for model in (InOneRow(False), OtherLengths(False)):
        with pytest.raises(ExportError, match=r"test_mend.py:\d+.*gives ctc_loss its targets in one row.*leave them padded"):
            export(model, inputs, tmp_path / "m.pt2")


def test_gradients_inside_forward_and_packed_sequences_are_refused_with_their_line(tmp_path):
    def penalty(x):
        y = x.clone().requires_grad_(True)
        return torch.autograd.grad(y.square().sum(), y, create_graph=True)[0]

    def packed(x):
        rows = nn.utils.rnn.pack_padded_sequence(x[:, :, None], (x > 0).sum(1).clamp(min=1), True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(rows, batch_first=True)[0][:, :, 0]

    with pytest.raises(ExportError, match=r'test_mend.py:\d+, "return torch.autograd.grad.*takes a gradient'):
        export_with(tmp_path / "m.pt2", penalty)
    with pytest.raises(ExportError, match=r'test_mend.py:\d+, "rows = .*packs sequences by lengths.*leave them padded'):
        export_with(tmp_path / "m.pt2", packed)


def test_a_choice_by_data_is_refused_with_its_line(tmp_path, capsys):
    with pytest.raises(ExportError, match=r'test_mend.py:\d+, "if x.sum\(\) > 0:" decides by the values of tensors'):
        export_with(tmp_path / "m.pt2", Chooses())
    shown = capsys.readouterr()
    assert shown.err + shown.out == ""


def test_the_line_that_fixes_the_batch_is_named(tmp_path, capsys):
    export(sample_models.FixedBatch(), (X,), tmp_path / "m.pt2", loss="cross_entropy", targets={"label": LABEL})
    assert 'sample_models.py:' in mended_lines(capsys)[0]


def test_a_model_on_the_meta_device_gives_a_file_without_weights(tmp_path, capsys):
    with torch.device("meta"):
        model = sample_models.Tied()
        model.wide = nn.Linear(4, 1_000_000)
    tokens = torch.randint(10, (8,))
    exported = export(model, (tokens,), tmp_path / "m.pt2", loss="cross_entropy", targets={"label": tokens})
    assert (tmp_path / "m.pt2").stat().st_size < 100_000
    assert exported.metadata["weights"] == "none"
    assert exported.metadata["ties"] == {"head.weight": "embed.weight"}
    assert all(parameter.is_meta for parameter in model.parameters())
    with zipfile.ZipFile(tmp_path / "m.pt2") as archive:
        program = json.loads(archive.read("m/models/model.json"))
        values = program["graph_module"]["graph"]["tensor_values"]
    assert {value["device"]["type"] for value in values.values()} == {"cpu"}
    assert mended_lines(capsys) == []


class Scored(sample_models.Classifier):
    def forward(self, x, labels):
        scores = super().forward(x)
        right = (scores.argmax(1) == labels).float().mean()
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores, "accuracy": right,
                "best": scores.argmax(1)}  # fmt: skip


def test_further_outputs_are_kept_by_name(tmp_path):
    inputs = {"x": X, "labels": LABEL}
    exported = export(Scored(), inputs, tmp_path / "m.pt2", outputs=["accuracy", "logits"], mode="eval")
    assert list(exported.metadata["outputs"]) == ["loss", "accuracy", "logits"]
    loss, accuracy, logits = exported.program.module()(**inputs)
    assert (loss.shape, accuracy.shape, logits.shape) == ((), (), (8, 3))
    names = [spec.arg.name for spec in exported.program.graph_signature.output_specs]
    assert list(exported.metadata["outputs"].values()) == names


def test_a_loss_function_may_name_further_outputs(tmp_path):
    def loss(scores, label):
        return nn.functional.cross_entropy(scores, label), {"accuracy": (scores.argmax(1) == label).float().mean()}

    exported = export(sample_models.Classifier(), (X,), tmp_path / "m.pt2", loss=loss, targets={"label": LABEL},
                      outputs=["accuracy", "output"])  # fmt: skip
    assert list(exported.metadata["outputs"]) == ["loss", "accuracy", "output"]


@pytest.mark.parametrize("outputs, message", [
    (["speed"], "no such output; there are loss, logits, accuracy, best"),
    (["best"], "best: is torch.int64, and must be a floating-point tensor"),
    (["logits", "logits"], "each name once"),
    (["loss"], "the loss is always there"),
])  # fmt: skip
def test_outputs_that_cannot_be_kept_are_refused(tmp_path, outputs, message):
    with pytest.raises(ExportError, match=message):
        export(Scored(), {"x": X, "labels": LABEL}, tmp_path / "m.pt2", outputs=outputs)


def test_facts_of_operators_outside_aten_come_from_their_schemas():
    library = torch.library.Library("espalier_facts", "FRAGMENT")
    library.define("scale_(Tensor(a!) x, float by) -> Tensor(a!)")
    library.define("parts(Tensor(a) x, Tensor y) -> (Tensor(a), Tensor)")
    library.define("noisy(Tensor x, Tensor(b!)[] sums) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    operators = torch.ops.espalier_facts
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    for operator in (operators.scale_, operators.parts, operators.noisy, torch.ops.aten.relu):
        graph.call_function(operator.default, (x,))
    program = types.SimpleNamespace(graph_module=torch.fx.GraphModule({}, graph))
    assert espalier_mend.operator_facts(program) == {
        "espalier_facts::noisy.default": {"writes": ["sums"], "shares": [[]], "random": True},
        "espalier_facts::parts.default": {"writes": [], "shares": [["x"], []], "random": False},
        "espalier_facts::scale_.default": {"writes": ["x"], "shares": [["x"]], "random": False},
    }


class Mixed(nn.Module):
    """Computes in bfloat16 where autocast says so."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.second(torch.relu(self.first(x)))
        return x.float()


def test_regions_of_autocast_stay_regions(tmp_path):
    exported = export_with(tmp_path / "m.pt2", Mixed())
    assert "wrap_with_autocast" in targets(exported)
    model = WithForward(Mixed())
    model.load_state_dict(exported.program.state_dict)
    equals_eager(exported, model)
