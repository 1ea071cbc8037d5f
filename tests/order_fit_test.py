#!/usr/bin/env python3
"""The checked-in trees that recommend a traversal order are what bench/traversal_orders/fit makes of its results. Standard library only."""

import pathlib
import subprocess
import sys

FIT = pathlib.Path(__file__).resolve().parent.parent / "bench" / "traversal_orders" / "fit"

if __name__ == "__main__":
    sys.exit(subprocess.run([sys.executable, FIT, "--check"], check=False).returncode)
