"""The command line program in a folder of its own: what tests of it share. Standard library only."""

import collections
import os
import pathlib
import subprocess
import tempfile
import unittest

BINARY = os.environ.get("ESPALIER_BINARY")
# Of searches that name none: builds under AddressSanitizer set it, where a search takes thirty times as long.
BUDGET = os.environ.get("ESPALIER_TEST_BUDGET")
FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"


def environment():
    """Of a user on any machine: not inside a launcher's worker, nothing remembered of this machine."""
    of_launchers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC")
    rest = {name: value for name, value in os.environ.items() if not name.startswith(of_launchers)}
    return rest | {"ESPALIER_CALIBRATION": "off", "OMP_NUM_THREADS": "1"}


def action_counts(compared):
    """{(device, letter): how many} of what `diff --json` says, over all stages of a device."""
    counts = collections.Counter()
    for row in compared["actions"]:
        counts[row["device"], row["action"]] += row["count"]
    return counts


class Command(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.scratch.name)

    def tearDown(self):
        self.scratch.cleanup()

    def write(self, name, text):
        (self.folder / name).write_text(text)
        return name

    def espalier(self, *arguments, code=0, prefix=()):
        if BUDGET and arguments[0] in ("plan", "compare") and "--budget" not in arguments:
            arguments = (*arguments, "--budget", BUDGET)
        done = subprocess.run([*prefix, BINARY, *map(str, arguments)], cwd=self.folder, env=environment(),
                              capture_output=True, text=True, timeout=240)  # fmt: skip
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}\n{done.stderr}")
        return done

    def refused(self, *arguments, says):
        """Exit 2, nothing on stdout, one line on stderr that says these words."""
        done = self.espalier(*arguments, code=2)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("espalier: "), done.stderr)
        for word in [says] if isinstance(says, str) else says:
            self.assertIn(word, done.stderr)
