"""The digits task: scikit-learn's 1,797 pictures of 8 x 8 pixels, as three views."""

import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples" / "models")]

TRAIN = 1408  # 11 batches of 128; the other 389 are held out


def views(images: np.ndarray) -> dict[str, torch.Tensor]:
    """images[n, 8, 8] with values 0..16 → the inputs of the three_branch model."""
    x = torch.from_numpy(images.astype(np.float32)) / 16.0
    n = x.shape[0]
    patches = x.view(n, 4, 2, 4, 2).permute(0, 1, 3, 2, 4).reshape(n, 16, 4)
    half = x.tril()  # the part on and below the diagonal
    summary = torch.cat([x.sum(2), x.sum(1), half.sum(2)], dim=1) / 4.0
    return {"patches": patches.contiguous(), "rows": x.contiguous(), "summary": summary.contiguous()}


def split() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """(train, held out): the views and the label by input name, shuffled once with a fixed seed."""
    data = load_digits()
    order = np.random.RandomState(0).permutation(len(data.target))
    tensors = views(data.images[order]) | {"label": torch.from_numpy(data.target[order].astype(np.int64))}
    train = {name: t[:TRAIN].contiguous() for name, t in tensors.items()}
    held_out = {name: t[TRAIN:].contiguous() for name, t in tensors.items()}
    return train, held_out


def build(size: str = "small", seed: int = 0) -> torch.nn.Module:
    import three_branch

    torch.manual_seed(seed)
    return three_branch.build(size)


def accuracy(model: torch.nn.Module, data: dict[str, torch.Tensor]) -> float:
    model.eval()
    with torch.no_grad():
        logits = model(data["patches"], data["rows"], data["summary"])
    return (logits.argmax(1) == data["label"]).float().mean().item()
