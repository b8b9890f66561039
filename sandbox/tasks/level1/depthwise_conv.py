"""3x3 convolution of each channel by itself."""
import torch
import torch.nn as nn

SIZE = "cpu"
batch, channels, side = {"cpu": (16, 32, 64), "gpu": (64, 128, 112)}[SIZE]


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.randn(batch, channels, side, side)]


def get_init_inputs():
    return [channels]
