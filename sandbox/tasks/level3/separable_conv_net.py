"""Depthwise and pointwise convolutions twice, with ReLU6, and a strided second stage."""
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = "cpu"
batch, channels, side = {"cpu": (16, 16, 56), "gpu": (32, 64, 112)}[SIZE]


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.depth1 = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.point1 = nn.Conv2d(channels, 2 * channels, 1)
        self.depth2 = nn.Conv2d(2 * channels, 2 * channels, 3, stride=2, padding=1, groups=2 * channels)
        self.point2 = nn.Conv2d(2 * channels, channels, 1)
        for conv in (self.depth1, self.point1, self.depth2, self.point2):
            nn.init.kaiming_normal_(conv.weight)
            nn.init.normal_(conv.bias, 0.0, 0.3)

    def forward(self, x):
        h = F.relu6(self.point1(torch.relu(self.depth1(x))))
        return self.point2(F.relu6(self.depth2(h)))


def get_inputs():
    return [torch.randn(batch, channels, side, side)]


def get_init_inputs():
    return [channels]
