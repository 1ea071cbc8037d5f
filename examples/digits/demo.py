"""The second half of scripts/demo: plans, trains and checks the digits model on this machine's workers.

    python examples/digits/demo.py --espalier build/release/espalier -o demo-out
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BATCH, MICRO_BATCH, WORKERS = 128, 16, 2
RECIPE = ["--optimizer", "adamw", "--lr", "5e-4", "--weight-decay", "0.01"]
STEPS, TIMED_STEPS, ROUNDS, PROFILE_ROUNDS = 330, 9, 3, 8
STARTED = time.monotonic()


def say(text):
    print(f"\n== {text}  [{time.monotonic() - STARTED:.0f} s]\n", flush=True)


def call(*arguments, allowed=(0,)):
    """Runs a command with its output on this terminal."""
    done = subprocess.run([str(a) for a in arguments])
    if done.returncode not in allowed:
        sys.exit(f"demo.py: {arguments[0]} {arguments[1]} ended with exit code {done.returncode}")
    return done.returncode


def read(*arguments, allowed=(0,)):
    """Runs a verb with --json and returns what it says."""
    done = subprocess.run([str(a) for a in (*arguments, "--json")], capture_output=True, text=True)
    if done.returncode not in allowed:
        sys.exit(f"demo.py: {arguments[1]}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def milliseconds(nanoseconds):
    return f"{nanoseconds / 1e6:.1f} ms"


def profile(espalier, model, costs, *more, run=call):
    run(espalier, "profile", model, "--micro-batch", MICRO_BATCH, "--workers", WORKERS, "-o", costs, *more)


def make_plans(espalier, planners, job, costs, out):
    plans = {planner: out / f"{planner}.json" for planner in planners}
    for planner, plan in plans.items():
        read(espalier, "plan", *job, "--costs", costs, "--planner", planner, "-o", plan)
    return plans


def time_plans(espalier, planners, job, costs, data, out):
    """In turns, operators are measured, planned for, and each plan trains a few steps: predictions and steps meet the
    same fast and slow moments of the machine. Returns the plans, and {planner: (predicted, measured, spread)} in
    nanoseconds: means over the turns, the latter of median steps, and the middle half of the steps around theirs."""
    predicted, medians, steps = ({planner: [] for planner in planners} for _ in range(3))
    for turn in range(ROUNDS):
        if turn > 0:
            costs = out / f"costs-{turn + 1}.json"
            profile(espalier, job[0], costs, "--rounds", PROFILE_ROUNDS, run=read)
        plans = make_plans(espalier, planners, job, costs, out)
        for planner, plan in plans.items():
            done = read(espalier, "run", plan, "--data", data, "--steps", TIMED_STEPS,
                        "--trace", plan.with_suffix(".measured.json"))
            taken = [step["time_ns"] for step in done["steps"][1:]]  # the first also allocates
            predicted[planner].append(done["predicted_ns"])
            medians[planner].append(statistics.median(taken))
            steps[planner] += [time - medians[planner][-1] for time in taken]
    times = {}
    for planner in planners:
        first, _, third = statistics.quantiles(steps[planner], n=4)
        times[planner] = statistics.mean(predicted[planner]), statistics.mean(medians[planner]), third - first
    return plans, times


def print_times(times, rows):
    print(f"{'planner':22}  {'workers':>7}  {'predicted':>10}  {'measured':>10}  {'error':>8}  "
          f"{'spread of steps':>15}")
    for planner, (predicted, measured, spread) in sorted(times.items(), key=lambda item: item[1][1]):
        workers = len({device for stage in rows[planner]["stages"] for device in stage["devices"]})
        print(f"{planner:22}  {workers:7}  {milliseconds(predicted):>10}  {milliseconds(measured):>10}  "
              f"{100 * (predicted / measured - 1):+7.1f} %  {100 * spread / measured:13.1f} %")
    pairs = right = 0
    names = list(times)
    for i, a in enumerate(names):
        for b in names[:i]:
            if abs(times[a][1] / times[b][1] - 1) > 0.05:
                pairs += 1
                right += (times[a][0] < times[b][0]) == (times[a][1] < times[b][1])
    if pairs:
        print(f"\norder: right in {right} of {pairs} pairs of plans that differ by more than 5 %")


def main():
    parser = argparse.ArgumentParser(description="Plan, train and check the digits model on this machine.")
    parser.add_argument("--espalier", type=Path, default=Path("build/release/espalier"))
    parser.add_argument("-o", "--output", type=Path, default=Path("demo-out"), metavar="FOLDER")
    arguments = parser.parse_args()
    espalier, out = arguments.espalier.resolve(), arguments.output
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    out.mkdir(parents=True, exist_ok=True)
    model, data, held_out = (out / name for name in ("digits.pt2", "train.safetensors", "test.safetensors"))
    costs = out / "costs.json"
    job = [model, "--cluster", f"local:{WORKERS}", "--batch", BATCH, "--micro-batch", MICRO_BATCH,
           *RECIPE]

    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"note: other programs keep this machine busy (load {load:.1f}): measured times will vary, and predictions "
              "with them")
    say("Exporting a model of handwritten digits, three branches, with its data")
    call(sys.executable, HERE / "prepare.py", "-o", out)
    call(espalier, "inspect", model)

    say("Measuring its operators here, on both workers at once")
    profile(espalier, model, costs)

    say("Every planner, judged by one simulator")
    call(espalier, "compare", *job, "--costs", costs, "--svg", out / "planners.svg")
    compared = read(espalier, "compare", *job, "--costs", costs)
    rows = {row["planner"]: row for row in compared["rows"] if row.get("fits") and not row["data_edges_only"]}

    say("Predicted against measured: every plan trains a few steps")
    plans, times = time_plans(espalier, list(rows), job, costs, data, out)
    print_times(times, rows)

    both = [p for p in rows if len({d for s in rows[p]["stages"] for d in s["devices"]}) == WORKERS]
    if not both:
        sys.exit("demo.py: no planner found a plan that uses both workers")
    best = min(both, key=lambda planner: rows[planner]["iteration_ns"])
    if "single" in times and times["single"][1] <= times[best][1]:
        print(f"\none worker alone is faster here: {milliseconds(times['single'][1])} a step against "
              f"{milliseconds(times[best][1])} of '{best}'")
    else:
        print(f"\n'{best}' on two workers is {times['single'][1] / times[best][1]:.2f} times as fast as one worker")

    say("Does a pipeline compute what one process computes?")
    for planner in dict.fromkeys([best, *(p for p in ("branches",) if p in both)]):
        print(f"{planner}: ", end="", flush=True)
        call(espalier, "verify", plans[planner], "--data", data)
        print()

    say(f"Training by '{best}' on {WORKERS} workers: {STEPS} steps of {BATCH} digits")
    trained = out / "trained.safetensors"
    call(espalier, "run", plans[best], "--data", data, "--steps", STEPS, "--save", trained)

    say("Reading digits that it has never seen")
    call(sys.executable, HERE / "evaluate.py", trained, "--data", held_out, "--at-least", "0.95")

    say("Pictures")
    shown = "branches" if "branches" in both else best
    call(espalier, "simulate", plans[shown], "--svg", out / "plan.svg", "--chrome", out / "plan.chrome.json")
    call(espalier, "diff", plans[shown], plans[shown].with_suffix(".measured.json"), "--svg",
         out / "predicted-and-measured.svg")
    print(f"\nopen {out}/predicted-and-measured.svg in a browser, {out}/plan.chrome.json in ui.perfetto.dev")
    say("Done")


if __name__ == "__main__":
    main()
