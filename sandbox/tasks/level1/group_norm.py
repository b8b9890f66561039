"""Group normalisation of a batch of images with a learned gain and bias per channel."""
import torch
import torch.nn as nn

SIZE = "cpu"
batch, channels, side = {"cpu": (16, 64, 64), "gpu": (64, 64, 128)}[SIZE]


class Model(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        nn.init.normal_(self.norm.weight, 1.0, 0.3)
        nn.init.normal_(self.norm.bias, 0.0, 0.5)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [2 * torch.randn(batch, channels, side, side)]


def get_init_inputs():
    return [8, channels]
