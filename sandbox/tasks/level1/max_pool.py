"""Overlapping 3x3 max pooling with stride 2."""
import torch
import torch.nn as nn

SIZE = "cpu"
batch, channels, side = {"cpu": (8, 32, 64), "gpu": (64, 64, 224)}[SIZE]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)

    def forward(self, x):
        return self.pool(x)


def get_inputs():
    return [torch.randn(batch, channels, side, side)]


def get_init_inputs():
    return []
