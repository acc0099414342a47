"""The network, the pictures of a partition, and what is done with them."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

DRAWN = 200  # pictures of a partition


class Net(nn.Module):
    """Two convolutions, then three linear layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.hidden1 = nn.Linear(16 * 5 * 5, 120)
        self.hidden2 = nn.Linear(120, 84)
        self.scores = nn.Linear(84, 10)

    def forward(self, x):
        """Class scores of pictures (B, 3, 32, 32)."""
        x = self.pool(functional.relu(self.conv1(x)))
        x = self.pool(functional.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        return self.scores(functional.relu(self.hidden2(functional.relu(self.hidden1(x)))))


class Pictures(Dataset):
    """Drawn pictures: the class is the place of a bright square, its colour is that of the partition."""

    def __init__(self, count, seed, colour):
        random = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(10, (count,), generator=random)
        self.pictures = 0.2 * torch.randn(count, 3, 32, 32, generator=random)
        for picture, label in zip(self.pictures, self.labels.tolist(), strict=True):
            row, column = 16 * (label // 5) + 2, 6 * (label % 5) + 1
            picture[colour % 3, row : row + 12, column : column + 6] += 1.0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"img": self.pictures[i], "label": self.labels[i]}


def load_data(partition_id, num_partitions, batch_size):
    """The training and testing pictures of a partition."""
    seed = 1 + partition_id
    train = DataLoader(Pictures(DRAWN, seed, partition_id), batch_size=batch_size, shuffle=True)
    return train, DataLoader(Pictures(DRAWN // 4, seed + num_partitions, partition_id), batch_size=batch_size)


def load_centralized_dataset():
    """Testing pictures of the server."""
    return DataLoader(Pictures(DRAWN, 0, 0), batch_size=100)


def train(net, loader, epochs, lr, device):
    """SGD with momentum; the mean loss."""
    net.to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for batch in loader:
            images, labels = batch["img"].to(device), batch["label"].to(device)
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


def test(net, loader, device):
    """The mean loss and the accuracy."""
    net.to(device)
    criterion, correct, total = nn.CrossEntropyLoss(), 0, 0.0
    with torch.no_grad():
        for batch in loader:
            outputs, labels = net(batch["img"].to(device)), batch["label"].to(device)
            total += criterion(outputs, labels).item()
            correct += (outputs.argmax(1) == labels).sum().item()
    return total / len(loader), correct / len(loader.dataset)
