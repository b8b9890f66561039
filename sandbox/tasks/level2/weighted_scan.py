"""Running weighted mean along each row: two scans and a quotient."""
import torch
import torch.nn as nn

SIZE = "cpu"
rows, cols = {"cpu": (1024, 1024), "gpu": (16384, 4096)}[SIZE]


class Model(nn.Module):
    def forward(self, score, value):
        weight = torch.exp(0.5 * score)
        return torch.cumsum(weight * value, dim=1) / torch.cumsum(weight, dim=1)


def get_inputs():
    return [torch.randn(rows, cols), torch.randn(rows, cols)]


def get_init_inputs():
    return []
