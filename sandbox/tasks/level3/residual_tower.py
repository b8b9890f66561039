"""Four narrow residual layers: normalise, linear, tanh, add."""
import torch
import torch.nn as nn

SIZE = "cpu"
rows, features = {"cpu": (1024, 96), "gpu": (65536, 256)}[SIZE]


class Layer(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.gain = nn.Parameter(1 + 0.3 * torch.randn(features))
        self.linear = nn.Linear(features, features)
        nn.init.normal_(self.linear.weight, 0.0, features ** -0.5)
        nn.init.normal_(self.linear.bias, 0.0, 0.3)

    def forward(self, x):
        h = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6) * self.gain
        return x + torch.tanh(self.linear(h))


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layers = nn.Sequential(*[Layer(features) for _ in range(4)])

    def forward(self, x):
        return self.layers(x)


def get_inputs():
    return [torch.randn(rows, features)]


def get_init_inputs():
    return [features]
