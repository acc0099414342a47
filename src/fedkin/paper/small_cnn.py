"""A small convolutional network for images of eight by eight pixels."""

import torch
from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Two convolutions of 3 × 3, each followed by ReLU and pooling, then a linear layer: 8 and 16 channels."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 16, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.scores = nn.Linear(16 * 2 * 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of images (B, 1, 8, 8)."""
        x = self.pool(torch.relu(self.first(x)))
        x = self.pool(torch.relu(self.second(x)))
        return torch.as_tensor(self.scores(x.flatten(1)))
