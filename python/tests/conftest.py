import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
for folder in (
    "python", "examples/models", "examples/digits", "tests/fixtures", "tests/fixtures/models", "python/tests",
):  # fmt: skip
    sys.path.insert(0, str(ROOT / folder))

torch.set_num_threads(1)
