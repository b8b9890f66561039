"""Sum of two streams, then root-mean-square normalisation with a learned gain."""
import torch
import torch.nn as nn

SIZE = "cpu"
rows, cols = {"cpu": (3072, 1024), "gpu": (65536, 2048)}[SIZE]


class Model(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.gain = nn.Parameter(1 + 0.3 * torch.randn(features))
        self.eps = eps

    def forward(self, x, residual):
        h = x + residual
        return h * torch.rsqrt(torch.mean(h * h, dim=-1, keepdim=True) + self.eps) * self.gain


def get_inputs():
    return [torch.randn(rows, cols), torch.randn(rows, cols)]


def get_init_inputs():
    return [cols, 1e-6]
