"""Root-mean-square normalisation of each row with a learned gain."""
import torch
import torch.nn as nn

SIZE = "cpu"
rows, cols = {"cpu": (3072, 1024), "gpu": (65536, 2048)}[SIZE]


class Model(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.gain = nn.Parameter(1 + 0.3 * torch.randn(features))
        self.eps = eps

    def forward(self, x):
        scale = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        return x * scale * self.gain


def get_inputs():
    return [3 * torch.randn(rows, cols)]


def get_init_inputs():
    return [cols, 1e-5]
