"""The command line program in a folder of its own: what tests of it share. Standard library only."""

import os
import pathlib
import subprocess
import tempfile
import unittest

BINARY = os.environ.get("ESPALIER_BINARY")
FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"


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
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        environment["ESPALIER_CALIBRATION"] = "off"  # nothing depends on this machine or its user
        done = subprocess.run([*prefix, BINARY, *arguments], cwd=self.folder, env=environment, capture_output=True,
                              text=True, timeout=120)
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
