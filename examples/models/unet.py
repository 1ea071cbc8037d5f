"""A U-Net that removes noise: a path down, a path up, and skips between them that keep tensors alive for long."""

from dataclasses import dataclass, replace

import torch
from torch import nn
import torch.nn.functional as F


@dataclass(frozen=True)
class Config:
    width: int
    levels: int
    side: int
    channels: int = 1
    dropout: float = 0.1


SIZES = {
    "tiny": Config(width=4, levels=2, side=8),
    "small": Config(width=16, levels=3, side=32),
    "medium": Config(width=64, levels=4, side=64),
}


class Pair(nn.Module):
    """Two convolutions with group norm; dropout of whole channels."""

    def __init__(self, channels_in: int, channels: int, dropout: float):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.norm1 = nn.GroupNorm(2, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm2 = nn.GroupNorm(2, channels)
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.norm1(self.conv1(x)))
        return self.dropout(F.silu(self.norm2(self.conv2(x))))


class UNet(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        widths = [config.width * 2**i for i in range(config.levels + 1)]
        self.down = nn.ModuleList(
            Pair(a, b, config.dropout) for a, b in zip([config.channels, *widths], widths[:-1])
        )
        self.middle = Pair(widths[-2], widths[-1], config.dropout)
        self.widen = nn.ModuleList(
            nn.ConvTranspose2d(2 * w, w, kernel_size=2, stride=2) for w in reversed(widths[:-1])
        )
        self.up = nn.ModuleList(Pair(2 * w, w, config.dropout) for w in reversed(widths[:-1]))
        self.out = nn.Conv2d(config.width, config.channels, 1)

    def forward(self, noisy: torch.Tensor) -> torch.Tensor:
        x, skips = noisy, []
        for pair in self.down:
            x = pair(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for widen, pair in zip(self.widen, self.up):
            x = pair(torch.cat([widen(x), skips.pop()], dim=1))
        return self.out(x)


def build(size: str = "tiny", **changes) -> nn.Module:
    return UNet(replace(SIZES[size], **changes))


def example_inputs(model: nn.Module, batch: int) -> tuple[dict, dict]:
    c = model.config
    clean = torch.randn(batch, c.channels, c.side, c.side)
    return {"noisy": clean + 0.3 * torch.randn_like(clean)}, {"clean": clean}


loss = "mse_loss"
