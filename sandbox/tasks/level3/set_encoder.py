"""An MLP on every element of a set, the maximum over the set, and a second MLP."""
import torch
import torch.nn as nn

SIZE = "cpu"
batch, members, features, hidden, outer = {"cpu": (256, 64, 32, 64, 32), "gpu": (1024, 128, 64, 256, 128)}[SIZE]


class Model(nn.Module):
    def __init__(self, features, hidden, outer):
        super().__init__()
        self.each1 = nn.Linear(features, hidden)
        self.each2 = nn.Linear(hidden, hidden)
        self.whole1 = nn.Linear(hidden, hidden)
        self.whole2 = nn.Linear(hidden, outer)
        for layer in (self.each1, self.each2, self.whole1, self.whole2):
            nn.init.normal_(layer.weight, 0.0, (2 / layer.in_features) ** 0.5)
            nn.init.normal_(layer.bias, 0.0, 0.3)

    def forward(self, x):
        h = self.each2(torch.relu(self.each1(x)))
        h = torch.tanh(torch.amax(h, dim=1) - 2.5)
        return self.whole2(torch.relu(self.whole1(h)))


def get_inputs():
    return [torch.randn(batch, members, features)]


def get_init_inputs():
    return [features, hidden, outer]
