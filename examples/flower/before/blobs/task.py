"""The model, the data of a partition, and the training loop."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small network."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x):
        """Class scores."""
        return self.layers(x)


def load_data(partition):
    """Ten blobs in 20 dimensions; a partition sees three of them."""
    centres = 2 * torch.randn(10, 20, generator=torch.Generator().manual_seed(0))
    own = torch.Generator().manual_seed(1 + partition)
    y = torch.tensor([partition, partition + 3, partition + 6])[torch.randint(3, (300,), generator=own)] % 10
    x = centres[y] + torch.randn(300, 20, generator=own)
    train = DataLoader(TensorDataset(x[:240], y[:240]), batch_size=32, shuffle=True)
    return train, DataLoader(TensorDataset(x[240:], y[240:]), batch_size=60)


def train(net, loader, epochs, lr):
    """Plain SGD."""
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(net(x), y).backward()
            optimizer.step()


def test(net, loader):
    """The accuracy."""
    with torch.no_grad():
        return sum((net(x).argmax(1) == y).sum().item() for x, y in loader) / len(loader.dataset)
