"""What happens when a worker dies, stands still or fails: the others stop within ten seconds, say who and what they waited for,
and leave neither a process nor a torn file. Under our own launcher and under torchrun."""

import json
import os
import pathlib
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(os.environ.get("ESPALIER_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BINARY = os.environ.get("ESPALIER_BINARY", str(ROOT / "build/release/espalier"))
PYTHON = pathlib.Path(os.environ.get("ESPALIER_PYTHON", ROOT / ".venv/bin/python"))
TORCHRUN = PYTHON.parent / "torchrun"
COMPLAINT = 12.0  # seconds within which a worker that misses another says so: it may be silent for 5, and ends within 3
LIMIT = 30.0  # seconds until everybody has stopped; 2 to 5 on a machine that does nothing else


def clean_environment():
    drop = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    return {k: v for k, v in os.environ.items() if k not in drop and not k.startswith("TORCHELASTIC")}


def make_plan(folder, model):
    plan = folder / "plan.json"
    subprocess.run([BINARY, "plan", str(ROOT / "tests/fixtures" / f"{model}.pt2"), "--cluster", "local:2", "--planner", "even",
                    "-o", str(plan)], check=True, capture_output=True, env=clean_environment())
    return plan


def environment_of(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    return dict(item.split("=", 1) for item in text.decode(errors="replace").split("\0") if "=" in item)


def state_of(pid):
    """"R" running, "S" sleeping, "T" stopped, "Z" ended and not yet asked for, "X" gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"


def rank_of_copy(pid):
    """Of a worker that is a copy of its launcher, whose environment it shows; None for any other process."""
    try:
        name = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None
    return name.removeprefix("espalier:") if name.startswith("espalier:") else None


def alive(pid):
    return state_of(pid) not in "ZX"


def write_tokens_beyond_the_table(path, samples=64):
    """Inputs like those beside the gpt fixture, but every integer is larger than any table."""
    fixture = (ROOT / "tests/fixtures/gpt.expected.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", fixture[:8])
    header, content = {}, b""
    for name, entry in json.loads(fixture[8:8 + length]).items():
        if not name.startswith("input."):
            continue
        shape = [samples, *entry["shape"][1:]]
        count = 1
        for dimension in shape:
            count *= dimension
        header[name.removeprefix("input.")] = {"dtype": "I64", "shape": shape, "data_offsets": [len(content), len(content) + 8 * count]}
        content += struct.pack("<q", 10**9) * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)


class Run:
    """A run of two workers; `mark` finds its processes among all of them."""

    def __init__(self, folder, command, launcher, preexec=None):
        self.mark = f"{folder.name}-{time.monotonic_ns()}"
        environment = clean_environment() | {"ESPALIER_TEST_MARK": self.mark, "NO_COLOR": "1"}
        if launcher == "torchrun":
            command = [str(TORCHRUN), "--no-python", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--local-addr", "127.0.0.1",
                       "--rdzv-endpoint", "127.0.0.1:0", BINARY, *command]
        else:
            command = [BINARY, "launch", "-n", "2", "--", *command]

        def become_a_job():  # a process group of its own, watched by this process, as a shell does it
            os.setpgid(0, 0)
            if preexec:
                preexec()

        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder, env=environment,
                                        preexec_fn=become_a_job)
        self.strangers = set()
        self.chunks = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):  # a pipe: a file would fall under the limit that the full-disk test sets
        while chunk := os.read(self.process.stdout.fileno(), 65536):
            self.chunks.append(chunk)

    def text(self):
        return b"".join(self.chunks).decode(errors="replace")

    def processes(self):
        """Process to rank. Whose environment is another's is asked once: what this run starts has the mark from its birth."""
        found = {}
        present = {int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit()}
        self.strangers &= present
        for pid in present - self.strangers:
            environment = environment_of(pid)
            if environment.get("ESPALIER_TEST_MARK") == self.mark:
                if alive(pid):
                    found[pid] = environment.get("RANK") or rank_of_copy(pid)
            elif environment and pid != self.process.pid:
                self.strangers.add(pid)
        return found

    def worker(self, rank):
        return next(pid for pid, r in self.processes().items() if r == str(rank))

    def wait_for_steps(self):
        """Until training is well under way: two workers have joined and a step was reported."""
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            if "step 1/" in self.text() and {"0", "1"} <= set(filter(None, self.processes().values())):
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError("training did not begin:\n" + self.text())

    def wait_for_complaint(self):
        """Until a worker says that something is wrong: the others' time begins there, not at the start of Python."""
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and self.process.poll() is None and "espalier: " not in self.text():
            time.sleep(0.02)

    def wait_until_gone(self):
        """Seconds until no process of the run is left; kills what is left after 30 s."""
        begin = time.monotonic()
        while time.monotonic() - begin < 30:
            self.process.poll()
            if not self.processes():
                self.process.wait()
                self.reader.join(10)
                return time.monotonic() - begin
            time.sleep(0.05)
        left = self.processes()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        raise AssertionError(f"still running after 30 s: {left}\n" + self.text())


class Launched:
    launcher = None

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="espalier-faults-")
        self.folder = pathlib.Path(self.scratch.name)
        self.runs = []

    def tearDown(self):
        for run in self.runs:
            run.reader.join(10)
            run.process.stdout.close()
        self.scratch.cleanup()

    def train(self, *extra, model="two_tower", preexec=None, steps="1000000"):
        plan = make_plan(self.folder, model)
        self.runs.append(Run(self.folder, ["run", str(plan), "--steps", steps, *extra], self.launcher, preexec))
        return self.runs[-1]

    def expect_stopped(self, run, *words):
        seconds = run.wait_until_gone()
        text = run.text()
        self.assertLess(seconds, LIMIT, text)
        for word in words:
            self.assertIn(word, text)
        self.assertNotEqual(run.process.returncode, 0, text)
        self.assertEqual([p.name for p in self.folder.iterdir() if ".tmp" in p.name], [])
        return text

    def test_a_killed_worker_is_named_and_the_other_stops(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                run = self.train()
                run.wait_for_steps()
                os.kill(run.worker(rank), signal.SIGKILL)
                self.expect_stopped(run, f"worker {rank}", "waits for")


class Faults(Launched):
    def test_a_stopped_worker_is_named_and_the_other_stops(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                run = self.train()
                run.wait_for_steps()
                victim = run.worker(rank)
                os.kill(victim, signal.SIGSTOP)
                begin = time.monotonic()
                left = ["?"]
                while time.monotonic() - begin < LIMIT and left:
                    time.sleep(0.05)
                    left = [r for p, r in run.processes().items() if r is not None and p != victim]
                self.assertEqual(left, [], run.text())
                if alive(victim):  # nobody but its launcher may end a stopped process; torchrun waits for it
                    os.kill(victim, signal.SIGKILL)
                self.expect_stopped(run, f"worker {rank}")

    def expect_to_go_on(self, run):
        """No complaint for longer than a worker may be silent, then an interrupt ends the run as always."""
        deadline = time.monotonic() + COMPLAINT
        while time.monotonic() < deadline:
            self.assertIsNone(run.process.poll(), run.text())
            time.sleep(0.05)
        run.process.send_signal(signal.SIGINT)
        run.wait_until_gone()
        if self.launcher != "torchrun":
            self.assertEqual(run.process.returncode, 130, run.text())

    def test_processes_that_are_all_stopped_go_on(self):  # as a frozen container or a sleeping computer stops them
        run = self.train()
        run.wait_for_steps()
        stopped = list(run.processes())
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(7)  # longer than a worker may be silent
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        self.expect_to_go_on(run)

    def test_an_operator_that_throws_is_named_with_its_source(self):
        data = self.folder / "bad.safetensors"
        write_tokens_beyond_the_table(data)
        run = self.train("--data", str(data), model="gpt")
        run.wait_for_complaint()
        text = self.expect_stopped(run, "embedding", "worker 0")
        self.assertIn("gpt.py", text)

    def test_a_killed_launcher_takes_its_workers_along(self):
        run = self.train()
        run.wait_for_steps()
        run.process.kill()
        self.expect_stopped(run)

    def test_an_interrupt_finishes_the_step_saves_and_exits_130(self):
        saved = self.folder / "saved.safetensors"
        run = self.train("--save", str(saved))
        run.wait_for_steps()
        run.process.send_signal(signal.SIGINT)
        self.assertLess(run.wait_until_gone(), 3 * LIMIT, run.text())
        if self.launcher != "torchrun":  # torchrun has an exit status of its own
            self.assertEqual(run.process.returncode, 130, run.text())
        (length,) = struct.unpack("<Q", saved.read_bytes()[:8])
        self.assertIn("__metadata__", json.loads(saved.read_bytes()[8:8 + length]))

    def test_a_full_disk_while_saving_leaves_no_torn_file(self):
        saved = self.folder / "saved.safetensors"
        saved.write_bytes(b"the file before")

        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

        run = self.train("--save", str(saved), preexec=small_files, steps="1")
        run.wait_for_complaint()
        text = self.expect_stopped(run, "saved.safetensors")
        self.assertEqual(saved.read_bytes(), b"the file before", text)


class OwnLauncher(Faults, unittest.TestCase):
    launcher = "espalier"

    def test_ctrl_z_stops_the_whole_job_and_fg_lets_it_go_on(self):
        run = self.train()
        run.wait_for_steps()
        everybody = list(run.processes())
        self.assertEqual(len(everybody), 3)  # the launcher and two workers
        os.killpg(run.process.pid, signal.SIGTSTP)
        deadline = time.monotonic() + 30
        while {state_of(pid) for pid in everybody} != {"T"}:
            self.assertLess(time.monotonic(), deadline, [state_of(pid) for pid in everybody])
            time.sleep(0.02)
        time.sleep(7)  # longer than a worker may be silent, or a worker alone may be stopped
        os.killpg(run.process.pid, signal.SIGCONT)
        self.expect_to_go_on(run)


class ByHand(unittest.TestCase):
    def test_workers_with_other_plans_end_at_once_with_one_message(self):
        with tempfile.TemporaryDirectory(prefix="espalier-faults-") as name, socket.socket() as reserved:
            folder = pathlib.Path(name)
            plan = make_plan(folder, "two_tower")
            other = folder / "other.json"
            content = json.loads(plan.read_text())
            content["seed"] = 77
            other.write_text(json.dumps(content))
            reserved.bind(("127.0.0.1", 0))  # and worker 0 inherits it, so that nobody else gets the port
            workers = []
            for rank, file in enumerate((plan, other)):
                variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                             "MASTER_PORT": str(reserved.getsockname()[1])}
                if rank == 0:
                    variables["ESPALIER_STORE_SOCKET"] = str(reserved.fileno())
                workers.append(subprocess.Popen([BINARY, "run", str(file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                                env=clean_environment() | variables, pass_fds=[reserved.fileno()] if rank == 0 else []))
            for worker in workers:
                try:
                    text = worker.communicate(timeout=60)[0].decode()
                finally:
                    worker.kill()
                self.assertEqual(worker.returncode, 2, text)
                self.assertIn("worker 1 (cpu:1) differs from worker 0 (cpu:0) in its seed (77, not 0)", text)


@unittest.skipUnless(TORCHRUN.exists(), "no torchrun beside ESPALIER_PYTHON")
class TorchRun(Launched, unittest.TestCase):  # faults_long_test.py has the other faults under it
    launcher = "torchrun"


if __name__ == "__main__":
    if not pathlib.Path(BINARY).exists():
        print("skipped: there is no", BINARY)
        sys.exit(77)
    unittest.main(verbosity=2)
