"""Two towers, image and text, that meet in a contrastive loss over the batch.

The graph is two independent branches and a small head: the smallest model for which a graph pipeline is
shorter than a chain. The loss mixes the samples of a micro-batch, so a micro-batch must stay whole.
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
    patches: int = 4
    patch_size: int = 6
    words: int = 6
    vocabulary: int = 16
    dropout: float = 0.1


SIZES = {
    "tiny": Config(width=8, layers=1, heads=2),
    "small": Config(width=128, layers=4, heads=4, patches=16, patch_size=48, words=16, vocabulary=500),
    "medium": Config(width=384, layers=8, heads=6, patches=49, patch_size=192, words=32, vocabulary=8000),
}


class Tower(nn.Module):
    def __init__(self, config: Config, embed: nn.Module, tokens: int):
        super().__init__()
        self.embed = embed
        self.position = nn.Parameter(0.02 * torch.randn(tokens, config.width))
        self.blocks = nn.ModuleList(Block(config.width, config.heads, config.dropout) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.project = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x) + self.position
        for block in self.blocks:
            x = block(x)
        return F.normalize(self.project(self.norm(x).mean(dim=1)), dim=-1)


class TwoTower(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.image = Tower(config, nn.Linear(config.patch_size, config.width), config.patches)
        self.text = Tower(config, nn.Embedding(config.vocabulary, config.width), config.words)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, patches: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Similarities[image, text]; the pairs of the batch are on the diagonal."""
        return self.scale.exp() * self.image(patches) @ self.text(words).T


def build(size: str = "tiny", **changes) -> nn.Module:
    config = replace(SIZES[size], **changes)
    model = TwoTower(config)
    model.config = config
    return model


def example_inputs(model: nn.Module, batch: int) -> tuple[dict, dict]:
    c = model.config
    inputs = {
        "patches": torch.randn(batch, c.patches, c.patch_size),
        "words": torch.randint(c.vocabulary, (batch, c.words)),
    }
    return inputs, {}


def loss(similarities: torch.Tensor) -> torch.Tensor:
    labels = torch.arange(similarities.shape[0], device=similarities.device)
    return 0.5 * (F.cross_entropy(similarities, labels) + F.cross_entropy(similarities.T, labels))
