"""Mixing of tokens and then of channels by small MLPs, without attention."""
import torch
import torch.nn as nn

SIZE = "cpu"
batch, tokens, features, hidden = {"cpu": (24, 64, 128, 256), "gpu": (64, 196, 512, 1024)}[SIZE]


class Model(nn.Module):
    def __init__(self, tokens, features, hidden):
        super().__init__()
        self.norm1 = nn.LayerNorm(features)
        self.norm2 = nn.LayerNorm(features)
        self.tokens1 = nn.Linear(tokens, tokens)
        self.tokens2 = nn.Linear(tokens, tokens)
        self.channels1 = nn.Linear(features, hidden)
        self.channels2 = nn.Linear(hidden, features)
        for norm in (self.norm1, self.norm2):
            nn.init.normal_(norm.weight, 1.0, 0.3)
            nn.init.normal_(norm.bias, 0.0, 0.3)
        for layer in (self.tokens1, self.tokens2, self.channels1, self.channels2):
            nn.init.normal_(layer.weight, 0.0, (2 / layer.in_features) ** 0.5)
            nn.init.normal_(layer.bias, 0.0, 0.3)

    def forward(self, x):
        h = self.norm1(x).transpose(1, 2)
        x = x + self.tokens2(torch.relu(self.tokens1(h))).transpose(1, 2)
        return x + self.channels2(torch.relu(self.channels1(self.norm2(x))))


def get_inputs():
    return [torch.randn(batch, tokens, features)]


def get_init_inputs():
    return [tokens, features, hidden]
