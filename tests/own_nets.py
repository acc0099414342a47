"""Modules as users write them, for the tests of models."""

import torch
from torch import Tensor, nn


class Positions(nn.Module):
    """A sequence of tokens: an embedding, a constant table of positions, and the mean."""

    table: Tensor

    def __init__(self, tokens: int = 12, length: int = 6, classes: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, 8)
        self.register_buffer("table", torch.sin(torch.arange(length * 8).float()).view(length, 8))
        self.register_buffer("mask", torch.ones(length, dtype=torch.int64))
        self.out = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.int64, "tokens are integers"
        return torch.as_tensor(self.out((self.embedding(x) + self.table).mean(-2)))


class Tied(nn.Module):
    """Two layers that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.out(torch.tanh(self.second(torch.tanh(self.first(x))))))


class Viewing(nn.Module):
    """Convolutions, then `view`, which needs the usual memory format."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.out(torch.relu(self.norm(self.conv(x))).view(x.size(0), -1)))


class Deciding(nn.Module):
    """Its path depends on the values of the samples, which `torch.func.vmap` does not support."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.out(x)
        return torch.as_tensor(z if float(z.detach().sum()) > 0 else 2 * z)


class Frozen(nn.Module):
    """Fixed random features and a layer that is trained, as in fine-tuning."""

    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.features, self.out = nn.Linear(5, hidden), nn.Linear(hidden, 3)
        self.features.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.out(torch.tanh(self.features(x))))


class Centred(nn.Module):
    """Scores relative to their mean over the batch: other samples matter."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.out(x)
        return torch.as_tensor(z - z.mean(0))


class Rows(nn.Module):
    """Images of shape (H, W) as sequences of H rows, without channels."""

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.recurrent, self.out = nn.GRU(width, 12, batch_first=True), nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.out(self.recurrent(x)[0][:, -1]))


class Counting(nn.Module):
    """A buffer that changes in training."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return torch.as_tensor(self.out(x))


class Digits(nn.Sequential):
    """A small convolutional network for images of 8 × 8."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


class Dropping(nn.Sequential):
    """A network with dropout for images of 8 × 8."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Dropout(0.5), nn.Linear(200, 10))
