"""Training that can be killed and resumed: what the tests of it share. Standard library only."""

import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(os.environ.get("ESPALIER_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "tests/cli"))

from command import BINARY, FIXTURES, Command, environment  # noqa: E402

RECIPE = ["--optimizer", "adamw", "--lr", "0.01", "--weight-decay", "0.1", "--no-decay", "*bias", "--lr-schedule", "cosine",
          "--warm-up", "2", "--schedule-steps", "9", "--clip-norm", "0.5", "--batch", "8", "--micro-batch", "2"]


def tensors(path):
    """{name: (dtype, shape, bytes)} of a safetensors file."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    header.pop("__metadata__", None)
    begin = 8 + length
    return {name: (row["dtype"], tuple(row["shape"]), content[begin + row["data_offsets"][0]:begin + row["data_offsets"][1]])
            for name, row in header.items()}


def write_tensors(path, named):
    header, content = {}, b""
    for name, (dtype, shape, data) in named.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(content), len(content) + len(data)]}
        content += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)


def steps_of(log):
    """{step: (loss, gradient norm, learning rate)}; of a step that was done twice, the later."""
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return {row["step"]: (row["loss"], row["gradient_norm"], row["learning_rate"]) for row in rows if row["event"] == "step"}


def content_of(checkpoint):
    """{name: hashes of value and state} of a checkpoint, whichever shard they are in."""
    manifest = json.loads((checkpoint / "checkpoint.json").read_text())
    return {row["name"]: [row["hash"], *(state["hash"] for state in row.get("state", []))] for row in manifest["variables"]}


def processes_of(mark):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"ESPALIER_TEST_MARK={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


class Training(Command):
    def plan(self, name, workers, model="three_branch", planner="even", recipe=RECIPE):
        self.espalier("plan", FIXTURES / f"{model}.pt2", "--cluster", f"local:{workers}", "--planner", planner, *recipe,
                      "--seed", "7", "-o", name)
        return name

    def kill_after(self, lines, *arguments):
        """Starts a run, waits until its log has so many lines, and kills every process of it. The log is a pipe, so nobody polls."""
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        mark = f"{self.folder.name}-{lines}-{time.monotonic_ns()}"
        run = subprocess.Popen([BINARY, "run", *map(str, arguments), "--log", str(pipe)], cwd=self.folder, text=True,
                               env=environment() | {"ESPALIER_TEST_MARK": mark}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        seen = []
        try:
            with open(pipe) as log:
                for line in log:
                    seen.append(json.loads(line))
                    if lines(seen) if callable(lines) else len(seen) >= lines:
                        break
                for pid in processes_of(mark):
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
        finally:
            run.kill()
            output, _ = run.communicate()
            pipe.unlink()
        self.assertTrue(seen, output)
        return seen

    def kill_at_random_moments(self, kills):
        """Of a run that writes a checkpoint in each step: what is complete never goes back, and is gone on from."""
        plan = self.plan("two.json", 2)
        moments = random.Random(11)
        step = 0
        for kill in range(kills):
            self.kill_after(moments.randint(2, 12), plan, "--steps", 10**9, "--checkpoints", "all", "--save-every", 1, "--keep", 2,
                            "--resume", "all", "--schedule-steps", 9)
            complete = [each for each in (self.folder / "all").iterdir() if (each / "checkpoint.json").exists()]
            self.assertLessEqual(len(complete), 3, f"kill {kill}")
            newest = max((json.loads((each / "checkpoint.json").read_text())["step"] for each in complete), default=0)
            self.assertGreaterEqual(newest, step, f"kill {kill}")
            step = newest
        done = self.espalier("run", plan, "--steps", step + 1, "--resume", "all", "--checkpoints", "all", "--schedule-steps", 9,
                             "--json")
        self.assertEqual([row["step"] for row in json.loads(done.stdout)["steps"]], [step])
