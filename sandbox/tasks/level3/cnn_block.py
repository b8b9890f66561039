"""Two convolutions with batch normalisation and a skip connection, then pooling and a classifier."""
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = "cpu"
batch, channels, side, classes = {"cpu": (24, 16, 32, 10), "gpu": (128, 64, 56, 100)}[SIZE]


class Model(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.norm2 = nn.BatchNorm2d(channels)
        for norm in (self.norm1, self.norm2):
            nn.init.normal_(norm.weight, 1.0, 0.3)
            nn.init.normal_(norm.bias, 0.0, 0.3)
            norm.running_mean.normal_(0.0, 0.3)
            norm.running_var.uniform_(0.5, 1.5)
        for conv in (self.conv1, self.conv2):
            nn.init.kaiming_normal_(conv.weight)
        self.head = nn.Linear(channels * 16, classes)
        nn.init.normal_(self.head.weight, 0.0, (channels * 16) ** -0.5)

    def forward(self, x):
        h = torch.relu(self.norm1(self.conv1(x)))
        h = torch.relu(self.norm2(self.conv2(h)) + x)
        h = F.adaptive_max_pool2d(h, 4)
        return self.head(torch.flatten(h, 1))


def get_inputs():
    return [torch.randn(batch, channels, side, side)]


def get_init_inputs():
    return [channels, classes]
