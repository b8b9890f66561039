"""One score per row from a dot product with learned weights; its sigmoid gates the row."""
import torch
import torch.nn as nn

SIZE = "cpu"
rows, cols = {"cpu": (4096, 1024), "gpu": (65536, 2048)}[SIZE]


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(2 * torch.randn(features, 1) * features ** -0.5)
        self.bias = nn.Parameter(0.3 * torch.randn(1))

    def forward(self, x):
        return x * torch.sigmoid(x @ self.weight + self.bias)


def get_inputs():
    return [torch.randn(rows, cols)]


def get_init_inputs():
    return [cols]
