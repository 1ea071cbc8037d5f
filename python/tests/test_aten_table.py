"""The C++ table of aten operators agrees with the schemas of the installed torch."""

import re
from pathlib import Path

import pytest
import torch

import list_operators

TABLE = Path(__file__).resolve().parents[2] / "espalier" / "cost" / "operator_table.cc"

# Functions of torch's that return their input, or a view of it, without saying so in their schema.
UNDECLARED_VIEWS = {
    "broadcast_tensors", "meshgrid", "atleast_1d", "atleast_2d", "atleast_3d", "type_as", "lift", "unsafe_chunk",
    "unsafe_split", "unsafe_split_with_sizes", "_unsafe_view", "alpha_dropout", "dropout", "feature_alpha_dropout",
    "feature_dropout",
}  # fmt: skip
# Writes that the table knows by `updates_statistics`, or that stand behind names of `out` arguments.
WRITES = {"running_mean", "running_var"}


def table_text():
    text = TABLE.read_text()
    return text[text.index("kTable") : text.index("make_index")]


def rows():
    text = table_text()
    table = {}
    for row in re.findall(r"Names\{(.*?)\},\n\s*(?=Names|//|\};)", text, re.S):
        if "Known::kElsewhere" in row:  # names of ONNX and profiles
            continue
        names = " ".join(re.findall(r'"([^"]*)"', row)).split()
        facts = {
            "alias": (re.findall(r"AtenAlias::k(\w+)", row) or ["Fresh"])[0],
            "random": (re.findall(r"AtenRandom::k(\w+)", row) or ["Never"])[0],
            "statistics": "updates_statistics = true" in row,
        }
        for name in names:
            table.setdefault(name, facts)
    return table


def schemas():
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::") and "out" not in schema.overload_name.split("_"):
            found.setdefault(schema.name.removeprefix("aten::"), []).append(schema)
    return found


ROWS, SCHEMAS = rows(), schemas()


def test_the_table_is_read():
    names = " ".join(re.findall(r'"([^"]*)"', table_text())).split()
    assert len(ROWS) > 500
    assert len(ROWS.keys() & SCHEMAS.keys()) > 600, "torch tells its schemas in another way"
    assert not [n for n in ROWS if names.count(n) > 1], "a name stands twice"
    assert ROWS["transpose"]["alias"] == "View" and ROWS["dropout"]["random"] == "Dropout"


@pytest.mark.parametrize("name", sorted(ROWS.keys() & SCHEMAS.keys()))
def test_views_and_writes_are_those_of_the_schema(name):
    facts = ROWS[name]
    for schema in SCHEMAS[name]:
        tensors = [r for r in schema.returns if "Tensor" in str(r.type)]
        if not tensors or (schema.arguments and str(schema.arguments[0].type).startswith("List[t]")):
            continue  # the same name on lists and numbers
        views = any(r.alias_info and not r.alias_info.is_write for r in schema.returns)
        writes = {a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write and not a.kwarg_only}
        if facts["alias"] == "Fresh":
            assert not views, str(schema)
        elif name not in UNDECLARED_VIEWS and not views:
            assert any(any(r.alias_info for r in s.returns) for s in SCHEMAS[name]), str(schema)
        assert not writes or facts["statistics"] or name in ("rrelu_with_noise",), str(schema)
        assert writes <= WRITES | {"noise", "save_mean", "save_invstd"}, str(schema)


def test_the_list_of_libtorchs_operators_is_that_of_the_installed_torch():
    if not torch.__version__.startswith("2.13."):
        pytest.skip("the list is torch 2.13's")
    assert list_operators.TARGET.read_text() == list_operators.text()


def test_operators_that_draw_random_numbers_are_known_to():
    for name, overloads in SCHEMAS.items():
        if name.startswith("_") or name.removesuffix("_") not in ROWS:
            continue
        tagged = False
        for schema in overloads:
            packet = getattr(torch.ops.aten, name, None)
            overload = getattr(packet, schema.overload_name or "default", None) if packet else None
            tagged |= overload is not None and torch.Tag.nondeterministic_seeded in overload.tags
        assert tagged == (ROWS[name.removesuffix("_")]["random"] != "Never"), name


def test_in_place_operators_write_their_first_argument():
    for name, overloads in SCHEMAS.items():
        if not name.endswith("_") or name.startswith("__") or name.removesuffix("_") not in ROWS:
            continue
        for schema in overloads:
            if "Tensor" not in str(schema.arguments[0].type) or "List" in str(schema.arguments[0].type):
                continue
            writes = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
            assert writes[:1] == [schema.arguments[0].name], str(schema)
            assert set(writes[1:]) <= {"noise"}, str(schema)
