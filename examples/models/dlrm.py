"""A recommendation model: embedding tables side by side, a dense branch, pairwise products, a top network.

The tables are independent branches with much memory and little arithmetic.
"""

from dataclasses import dataclass, replace

import torch
from torch import nn
import torch.nn.functional as F


@dataclass(frozen=True)
class Config:
    width: int
    tables: int
    rows: int  # of each table
    dense: int = 6
    hot: int = 2  # rows read per sample and table


SIZES = {
    "tiny": Config(width=8, tables=3, rows=10),
    "small": Config(width=64, tables=8, rows=10_000, dense=13, hot=4),
    "medium": Config(width=128, tables=26, rows=50_000, dense=13, hot=8),
}


def mlp(*sizes: int) -> nn.Sequential:
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        width, features = config.width, config.tables + 1
        self.bottom = mlp(config.dense, 4 * width, width)
        self.tables = nn.ModuleList(nn.Embedding(config.rows, width) for _ in range(config.tables))
        self.top = mlp(width + features * (features - 1) // 2, 4 * width, 2 * width)
        self.click = nn.Linear(2 * width, 1)
        rows, columns = torch.tril_indices(features, features, offset=-1)
        self.register_buffer("pairs", rows * features + columns, persistent=False)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """dense[batch, number], ids[batch, table, row] → logits[batch]."""
        batch, _, hot = ids.shape
        bottom = self.bottom(dense)
        looked_up = [
            table(ids[:, i].reshape(batch * hot)).view(batch, hot, -1).sum(dim=1) for i, table in enumerate(self.tables)
        ]
        features = torch.stack([bottom, *looked_up], dim=1)
        products = torch.bmm(features, features.transpose(1, 2)).flatten(1)
        pairs = torch.index_select(products, 1, self.pairs)
        return self.click(self.top(torch.cat([bottom, pairs], dim=1))).squeeze(1)


def build(size: str = "tiny", **changes) -> nn.Module:
    return Dlrm(replace(SIZES[size], **changes))


def example_inputs(model: nn.Module, batch: int) -> tuple[dict, dict]:
    c = model.config
    inputs = {"dense": torch.randn(batch, c.dense), "ids": torch.randint(c.rows, (batch, c.tables, c.hot))}
    return inputs, {"clicked": torch.randint(2, (batch,)).float()}


loss = "bce_with_logits"
