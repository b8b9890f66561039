"""Three-layer perceptron with GELU."""
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = "cpu"
rows, inner, hidden, outer = {"cpu": (256, 256, 512, 128), "gpu": (8192, 1024, 2048, 512)}[SIZE]


class Model(nn.Module):
    def __init__(self, inner, hidden, outer):
        super().__init__()
        self.first = nn.Linear(inner, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.third = nn.Linear(hidden, outer)
        for layer in (self.first, self.second, self.third):
            nn.init.normal_(layer.weight, 0.0, (2 / layer.in_features) ** 0.5)
            nn.init.normal_(layer.bias, 0.0, 0.2)

    def forward(self, x):
        h = F.gelu(self.first(x), approximate="tanh")
        h = F.gelu(self.second(h), approximate="tanh")
        return self.third(h)


def get_inputs():
    return [torch.randn(rows, inner)]


def get_init_inputs():
    return [inner, hidden, outer]
