"""Sliding mean over a long signal (1-D average pooling with stride 1)."""
import torch
import torch.nn as nn

SIZE = "cpu"
batch, channels, length = {"cpu": (8, 32, 2048), "gpu": (64, 64, 16384)}[SIZE]


class Model(nn.Module):
    def __init__(self, window):
        super().__init__()
        self.pool = nn.AvgPool1d(window, stride=1, padding=window // 2)

    def forward(self, x):
        return self.pool(x)


def get_inputs():
    return [torch.randn(batch, channels, length)]


def get_init_inputs():
    return [9]
