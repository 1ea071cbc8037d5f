"""A small GPT: token and position embeddings, causal blocks, tied output embedding.

`layers`, `width`, `sequence` and `tied` can be set, to move the balance between launch overhead and arithmetic.
"""

from dataclasses import dataclass, replace

import torch
from torch import nn
import torch.nn.functional as F

from layers import Block


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    heads: int
    sequence: int
    vocabulary: int
    dropout: float = 0.1
    tied: bool = True


SIZES = {
    "tiny": Config(layers=2, width=8, heads=2, sequence=6, vocabulary=20),
    "small": Config(layers=6, width=128, heads=4, sequence=64, vocabulary=256),
    "medium": Config(layers=12, width=512, heads=8, sequence=128, vocabulary=4096),
}


class Gpt(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.sequence, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(config.width, config.heads, config.dropout, causal=True) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        for weight in (self.embed.weight, self.position.weight):
            nn.init.normal_(weight, std=0.1)
        if config.tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.embed(tokens) + self.position(places))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build(size: str = "tiny", **changes) -> nn.Module:
    return Gpt(replace(SIZES[size], **changes))


def example_inputs(model: nn.Module, batch: int) -> tuple[dict, dict]:
    c = model.config
    text = torch.randint(c.vocabulary, (batch, c.sequence + 1))
    return {"tokens": text[:, :-1].contiguous()}, {"labels": text[:, 1:].contiguous()}


def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
