"""Pre-normalised gated MLP with a residual, as decoder layers have it."""
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = "cpu"
rows, features, hidden = {"cpu": (512, 192, 512), "gpu": (8192, 1024, 2816)}[SIZE]


class Model(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.gain = nn.Parameter(1 + 0.3 * torch.randn(features))
        self.gate = nn.Linear(features, hidden, bias=False)
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)
        for layer in (self.gate, self.up, self.down):
            nn.init.normal_(layer.weight, 0.0, (2 / layer.in_features) ** 0.5)

    def forward(self, x):
        h = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6) * self.gain
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def get_inputs():
    return [torch.randn(rows, features)]


def get_init_inputs():
    return [features, hidden]
