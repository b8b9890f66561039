"""Convolution, batch normalisation with stored statistics, ReLU: foldable into one pass."""
import torch
import torch.nn as nn

SIZE = "cpu"
batch, inner, outer, side = {"cpu": (8, 16, 32, 56), "gpu": (32, 32, 64, 112)}[SIZE]


class Model(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(self.conv.weight)
        self.norm = nn.BatchNorm2d(outer)
        nn.init.normal_(self.norm.weight, 1.0, 0.3)
        nn.init.normal_(self.norm.bias, 0.0, 0.5)
        self.norm.running_mean.normal_(0.0, 0.5)
        self.norm.running_var.uniform_(0.5, 2.0)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


def get_inputs():
    return [torch.randn(batch, inner, side, side)]


def get_init_inputs():
    return [inner, outer]
