"""What benchmarks of `auto` and `checkpointed` share: the plans of all planners for one job, judged by one simulator."""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

BUILD = Path(os.environ.get("ESPALIER_BUILD", Path(__file__).resolve().parents[1] / "build" / "release"))
BUDGET = 30_000_000  # of each planner: auto's default


def told(*arguments):
    """What a command says, in JSON, its processor seconds and its wall seconds."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run([BUILD / "espalier", *map(str, arguments), "--json"], capture_output=True, text=True)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - begin
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return json.loads(done.stdout), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def fastest(rows):
    fitting = [row for row in rows if row.get("iteration_ns") and row["fits"]]
    return min(fitting, key=lambda row: row["iteration_ns"], default=None)


def steps(model, cluster, batch):
    """auto's row of `compare`, columns for the table, and processor seconds of `checkpointed` and `auto`.

    The best other planner is that of all but these two, with as large a budget as auto has.
    """
    catalog, *_ = told("planners")
    others = [row["planner"] for row in catalog["planners"] if row["asked_by_auto"] and row["planner"] != "checkpointed"]
    job = ("compare", model, "--cluster", cluster, "--batch", batch)
    of_others, *_ = told(*job, "-p", ",".join(others), "--budget", BUDGET * len(others))
    alone, alone_seconds, _ = told(*job, "-p", "checkpointed")
    best, best_seconds, _ = told(*job, "-p", "auto")
    other, checkpointed, auto = fastest(of_others["rows"]), fastest(alone["rows"]), fastest(best["rows"])
    if not auto:
        sys.exit(f"{model} on {cluster}: nothing fits")
    seconds = lambda row: round(row["iteration_ns"] / 1e9, 3) if row else ""
    columns = {
        "best other": other["planner"] if other else "none fits", "other s": seconds(other), "checkpointed s": seconds(checkpointed),
        "auto s": seconds(auto), "bound s": round(best["bound"]["time_ns"] / 1e9, 3),
    }  # fmt: skip
    return auto, columns, (alone_seconds, best_seconds)
