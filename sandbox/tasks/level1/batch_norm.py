"""Batch normalisation with stored statistics (evaluation mode) of a batch of images."""
import torch
import torch.nn as nn

SIZE = "cpu"
batch, channels, side = {"cpu": (32, 64, 56), "gpu": (128, 64, 128)}[SIZE]


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        nn.init.normal_(self.norm.weight, 1.0, 0.3)
        nn.init.normal_(self.norm.bias, 0.0, 0.5)
        self.norm.running_mean.normal_(0.0, 1.0)
        self.norm.running_var.uniform_(0.5, 2.0)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(batch, channels, side, side)]


def get_init_inputs():
    return [channels]
