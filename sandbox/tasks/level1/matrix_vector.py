"""A tall matrix times one vector."""
import torch
import torch.nn as nn

SIZE = "cpu"
rows, cols = {"cpu": (8192, 2048), "gpu": (65536, 4096)}[SIZE]


class Model(nn.Module):
    def forward(self, a, v):
        return torch.mv(a, v)


def get_inputs():
    return [torch.randn(rows, cols), torch.randn(cols)]


def get_init_inputs():
    return []
