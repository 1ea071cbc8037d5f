#!/usr/bin/env python3
"""Training killed fifty times while it writes checkpoints. Standard library only. Skipped (77) where the program is not built."""

import sys
import unittest

from training import BINARY, Training


class Kills(Training):
    def test_the_last_complete_checkpoint_survives_fifty_kills(self):
        self.kill_at_random_moments(50)


if __name__ == "__main__":
    if not BINARY:
        sys.exit(77)
    unittest.main()
