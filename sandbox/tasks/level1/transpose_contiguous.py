"""Transpose of every matrix of a batch, written out in row order."""
import torch
import torch.nn as nn

SIZE = "cpu"
batch, rows, cols = {"cpu": (4, 1024, 768), "gpu": (32, 2048, 2048)}[SIZE]


class Model(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2).contiguous()


def get_inputs():
    return [torch.randn(batch, rows, cols)]


def get_init_inputs():
    return []
