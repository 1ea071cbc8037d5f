"""Three views of one digit, three transformer branches, one head.

The views of an 8 x 8 picture: 16 patches of 2 x 2 pixels, the 8 rows as a sequence, and a summary of sums
(rows, columns, and the two diagonal halves' rows). `examples/digits` trains it.
"""

from dataclasses import dataclass, replace

import torch
from torch import nn
import torch.nn.functional as F

from layers import Block


@dataclass(frozen=True)
class Config:
    width: int
    layers: int
    heads: int
    dropout: float = 0.1
    classes: int = 10
    patches: int = 16
    patch_size: int = 4
    rows: int = 8
    row_size: int = 8
    summary: int = 24
    summary_tokens: int = 8


SIZES = {
    "tiny": Config(width=8, layers=1, heads=2, summary_tokens=2),
    "small": Config(width=96, layers=2, heads=4),
    "medium": Config(width=256, layers=6, heads=8),
}


class Branch(nn.Module):
    """Tokens[batch, tokens, features] → one vector per sample."""

    def __init__(self, config: Config, tokens: int, features: int):
        super().__init__()
        self.embed = nn.Linear(features, config.width)
        self.position = nn.Parameter(0.02 * torch.randn(tokens, config.width))
        self.blocks = nn.ModuleList(Block(config.width, config.heads, config.dropout) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return self.norm(x).mean(dim=1)


class ThreeBranch(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.image = Branch(config, config.patches, config.patch_size)
        self.sequence = Branch(config, config.rows, config.row_size)
        self.numbers = Branch(config, config.summary_tokens, config.summary // config.summary_tokens)
        self.fuse = nn.Linear(3 * config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(config.width, config.classes)

    def forward(self, patches: torch.Tensor, rows: torch.Tensor, summary: torch.Tensor) -> torch.Tensor:
        numbers = summary.unflatten(1, (self.config.summary_tokens, -1))
        views = torch.cat([self.image(patches), self.sequence(rows), self.numbers(numbers)], dim=-1)
        return self.head(self.dropout(F.gelu(self.fuse(views))))


def build(size: str = "tiny", **changes) -> nn.Module:
    return ThreeBranch(replace(SIZES[size], **changes))


def example_inputs(model: nn.Module, batch: int) -> tuple[dict, dict]:
    c = model.config
    inputs = {
        "patches": torch.randn(batch, c.patches, c.patch_size),
        "rows": torch.randn(batch, c.rows, c.row_size),
        "summary": torch.randn(batch, c.summary),
    }
    return inputs, {"label": torch.randint(c.classes, (batch,))}


loss = "cross_entropy"
