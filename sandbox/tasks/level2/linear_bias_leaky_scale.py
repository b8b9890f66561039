"""Linear layer, leaky ReLU and a learned scale per output."""
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = "cpu"
rows, inner, outer = {"cpu": (512, 384, 768), "gpu": (8192, 1024, 4096)}[SIZE]


class Model(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.linear = nn.Linear(inner, outer)
        nn.init.normal_(self.linear.weight, 0.0, inner ** -0.5)
        nn.init.normal_(self.linear.bias, 0.0, 0.5)
        self.scale = nn.Parameter(1 + 0.3 * torch.randn(outer))

    def forward(self, x):
        return F.leaky_relu(self.linear(x), 0.1) * self.scale


def get_inputs():
    return [torch.randn(rows, inner)]


def get_init_inputs():
    return [inner, outer]
