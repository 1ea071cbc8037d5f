"""Small models that show one feature of the exporter each."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))

    def forward(self, x):
        return self.layers(x * self.scale)


class FixedBatch(Classifier):
    """Adds one row per sample of the batch of eight it was written for."""

    def forward(self, x):
        return super().forward(x) + torch.arange(8).unsqueeze(1)


class DictOutput(Classifier):
    def forward(self, x, labels=None):
        logits = super().forward(x)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens))


class Checked(nn.Module):
    """Refuses bad input, in five ways to write it."""

    def forward(self, x):
        assert (x > -100).all(), "too small"
        if not torch.isfinite(x).all():
            raise ValueError("not finite")
        if (x > 100).any():
            raise ValueError("too large")
        assert torch.all(x != 50).item(), "fifty"
        torch._check_tensor_all(x != 51)
        return x


def make(batch: int = 8):
    return Classifier(), (torch.randn(batch, 4),), {"label": torch.randint(3, (batch,))}


def make_fixed():
    return FixedBatch(), (torch.randn(8, 4),), {"label": torch.randint(3, (8,))}


def make_nothing():
    return 3
