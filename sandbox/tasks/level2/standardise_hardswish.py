"""Each row made zero-mean and unit-variance, then hard swish and a clamp."""
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = "cpu"
rows, cols = {"cpu": (3072, 1024), "gpu": (65536, 1024)}[SIZE]


class Model(nn.Module):
    def forward(self, x):
        centred = x - x.mean(dim=-1, keepdim=True)
        variance = torch.mean(centred * centred, dim=-1, keepdim=True)
        y = centred * torch.rsqrt(variance + 1e-5)
        return torch.clamp(F.hardswish(y), max=2.0)


def get_inputs():
    return [3 * torch.randn(rows, cols) + 1]


def get_init_inputs():
    return []
