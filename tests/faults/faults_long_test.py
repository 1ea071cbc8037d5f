#!/usr/bin/env python3
"""Every fault once more under torchrun, each minutes of Python's start. Standard library only. Skipped (77) where the program is
not built."""

import pathlib
import sys
import unittest

import faults_test as faults


@unittest.skipUnless(faults.TORCHRUN.exists(), "no torchrun beside ESPALIER_PYTHON")
class TorchRun(faults.Faults, unittest.TestCase):
    launcher = "torchrun"


if __name__ == "__main__":
    if not pathlib.Path(faults.BINARY).exists():
        print("skipped: there is no", faults.BINARY)
        sys.exit(77)
    unittest.main(verbosity=2)
