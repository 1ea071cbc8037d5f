"""Schedules pass between Espalier and torch.distributed.pipelining, as its CSV files, both ways."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from torch.distributed.pipelining import schedules

ROOT = Path(__file__).resolve().parents[2]
BINARIES = [os.environ.get("ESPALIER_BINARY"), ROOT / "build/release/espalier", ROOT / "build/notorch/espalier"]
MICRO_BATCHES = 8
RANKS = 2
# Name here, class there: a loop or a V of two stages on each of two ranks.
LOOP, V = "interleaved", "zbv"
SCHEDULES = [
    (LOOP, "interleaved", schedules.ScheduleInterleaved1F1B),
    (LOOP, "interleaved,split", schedules.ScheduleInterleavedZeroBubble),
    (V, "zbv", schedules.ScheduleZBVZeroBubble),
    (V, "dualpipev", schedules.ScheduleDualPipeV),
]
SAME_ORDER = {"interleaved", "interleaved,split", "dualpipev"}  # zbv is filled by the times of a plan


def espalier(*words):
    binary = next((path for path in map(Path, filter(None, BINARIES)) if path.exists()), None)
    if binary is None:
        pytest.skip("espalier is not built")
    done = subprocess.run([binary, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Stage:
    """As much of a stage as a schedule looks at while it makes its order."""

    def __init__(self, index):
        self.stage_index, self.num_stages = index, 2 * RANKS
        self.group_size, self.group_rank = RANKS, 0
        self.submod = torch.nn.Identity()
        self.is_first, self.is_last = index == 0, index == 2 * RANKS - 1


def torch_schedule(kind, layout):
    stages = [Stage(0), Stage(2 * RANKS - 1 if layout == V else RANKS)]
    return kind(stages, MICRO_BATCHES, loss_fn=torch.nn.functional.mse_loss)


def flat(order):
    """Actions of each rank without bubbles; those that run side by side one after the other."""
    ranks = {}
    for rank, actions in order.items():
        ranks[rank] = []
        for action in filter(None, actions):
            ranks[rank] += [str(part) for part in action.sub_actions or (action,)]
    return ranks


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    for layout in (LOOP, V):
        espalier("plan", ROOT / "tests/fixtures/gpt2.pt2", "--cluster", f"{RANKS}xcpu", "--batch", 16,
                 "--micro-batch", 16 // MICRO_BATCHES, "--planner", "looped", "--schedule",
                 "interleaved,chunks=2" if layout == LOOP else layout, "-o", folder / f"{layout}.json")  # fmt: skip
    return folder


@pytest.mark.parametrize(("layout", "name", "kind"), SCHEDULES)
def test_torch_loads_what_espalier_writes(plans, tmp_path, layout, name, kind):
    file = tmp_path / "orders.csv"
    espalier("simulate", plans / f"{layout}.json", "--schedule", name, "--orders", file)
    schedule = torch_schedule(kind, layout)
    own = flat(schedule.pipeline_order)
    schedule._load_csv(str(file), format="compute_only")  # checks it, and adds messages: none waits forever
    assert schedule.pipeline_order_with_comms.keys() == set(range(RANKS))
    if name in SAME_ORDER:
        assert flat(schedule.pipeline_order) == own


@pytest.mark.parametrize("form", ["compute_only", "compute_comms"])
@pytest.mark.parametrize(("layout", "name", "kind"), SCHEDULES)
def test_espalier_reads_what_torch_writes(plans, tmp_path, layout, name, kind, form):
    dumped, again = tmp_path / "torch.csv", tmp_path / "again.csv"
    schedule = torch_schedule(kind, layout)
    schedule._dump_csv(str(dumped), format=form)
    plan = plans / f"{layout}.json"
    simulated = json.loads(espalier("simulate", plan, "--json", "--schedule", dumped, "--orders", again))
    assert simulated["iteration_ns"] > 0
    rows = {rank: row.split(",") for rank, row in enumerate(again.read_text().split())}
    assert rows == flat(schedule.pipeline_order)
