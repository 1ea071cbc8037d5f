"""A small residual network: convolutions, BatchNorm, skips.

In train mode BatchNorm updates its buffers in place, once per micro-batch.
"""

from dataclasses import dataclass, replace

import torch
from torch import nn
import torch.nn.functional as F


@dataclass(frozen=True)
class Config:
    width: int
    layers: int  # blocks in each of the two levels
    side: int
    classes: int = 10


SIZES = {
    "tiny": Config(width=4, layers=1, side=8),
    "small": Config(width=32, layers=2, side=32),
    "medium": Config(width=96, layers=4, side=64),
}


class Residual(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.skip = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.skip = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        width = config.width
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.level1 = nn.Sequential(*(Residual(width, width, 1) for _ in range(config.layers)))
        self.level2 = nn.Sequential(
            *(Residual(width if i == 0 else 2 * width, 2 * width, 2 if i == 0 else 1) for i in range(config.layers))
        )
        self.head = nn.Linear(2 * width, config.classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.level2(self.level1(self.stem(image))).mean(dim=(2, 3)))


def build(size: str = "tiny", **changes) -> nn.Module:
    return ResNet(replace(SIZES[size], **changes))


def example_inputs(model: nn.Module, batch: int) -> tuple[dict, dict]:
    c = model.config
    return {"image": torch.randn(batch, 3, c.side, c.side)}, {"label": torch.randint(c.classes, (batch,))}


loss = "cross_entropy"
