"""Group normalisation and SiLU, times a gate that comes as a second input."""
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = "cpu"
batch, channels, side = {"cpu": (16, 64, 56), "gpu": (64, 64, 128)}[SIZE]


class Model(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        nn.init.normal_(self.norm.weight, 1.0, 0.3)
        nn.init.normal_(self.norm.bias, 0.0, 0.5)

    def forward(self, x, gate):
        return F.silu(self.norm(x)) * gate[:, :, None, None]


def get_inputs():
    return [2 * torch.randn(batch, channels, side, side), torch.randn(batch, channels)]


def get_init_inputs():
    return [16, channels]
