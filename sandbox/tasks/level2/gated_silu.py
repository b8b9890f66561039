"""Gate of a gated MLP: silu(a) * b, then a residual."""
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = "cpu"
rows, cols = {"cpu": (1024, 2048), "gpu": (16384, 8192)}[SIZE]


class Model(nn.Module):
    def forward(self, gate, value, residual):
        return residual + F.silu(gate) * value


def get_inputs():
    return [2 * torch.randn(rows, cols), torch.randn(rows, cols), torch.randn(rows, cols)]


def get_init_inputs():
    return []
