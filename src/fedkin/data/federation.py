"""A federation: the data of its training clients and testing clients.

The samples of all clients are in one array, ordered by client, with an array of offsets: ragged, without padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import BadInput
from fedkin.types import Integers


@dataclass(frozen=True)
class Clients:
    """Samples of C clients: client i holds rows `offsets[i]` to `offsets[i + 1]` of `x` and `y`.

    x        (N, D) float32, preprocessed, one flattened sample per row
    y        (N,)   int64, the class of each sample
    offsets  (C + 1,) int64, from 0 to N
    names    of the clients, if they have names (a writer's number, for example)
    """

    x: Tensor
    y: Tensor
    offsets: Integers
    names: tuple[str, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Integers:
        """Number of samples of each client, (C,)."""
        return np.diff(self.offsets)

    def rows(self, client: int) -> slice:
        """The rows of a client's samples."""
        return slice(int(self.offsets[client]), int(self.offsets[client + 1]))

    def class_counts(self, classes: int) -> Integers:
        """Samples of each class at each client, (C, K)."""
        owner = np.repeat(np.arange(len(self)), self.sizes)
        flat = np.bincount(owner * classes + self.y.cpu().numpy(), minlength=len(self) * classes)
        return flat.reshape(len(self), classes)

    def reordered(self, order: Sequence[int]) -> "Clients":
        """The same clients in another order: new client j is old client `order[j]`."""
        rows = np.concatenate([np.arange(self.offsets[i], self.offsets[i + 1]) for i in order])
        names = tuple(self.names[i] for i in order) if self.names else ()
        return from_rows(self.x[rows], self.y[rows], self.sizes[list(order)], names)


def from_rows(x: Tensor, y: Tensor, sizes: Integers, names: tuple[str, ...] = ()) -> Clients:
    """Clients from samples that are already ordered by client."""
    return Clients(x, y, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), names)


@dataclass(frozen=True)
class Federation:
    """Training and testing clients, and the properties common to all of them.

    classes      K, the number of classes
    shape        of one sample: (channels, height, width) for images, (D,) for feature vectors
    shift, scale the preprocessing: x = (raw − shift) / scale, each (D,) float32. Messages are computed from the raw
                 features.
    paired       whether testing client i belongs to training client i: the same origin, or the same class mix and
                 share of samples. Only then do measures over testing clients, such as the accuracy of the worst
                 decile, say how well training clients are served, and can a client's own model be tested.
    """

    train: Clients
    test: Clients
    classes: int
    shape: tuple[int, ...]
    shift: Tensor
    scale: Tensor
    name: str = "federation"
    paired: bool = False

    def __post_init__(self) -> None:
        for part, clients in (("training", self.train), ("testing", self.test)):
            if (empty := np.flatnonzero(clients.sizes == 0)).size:
                raise BadInput(
                    f"{empty.size} of {len(clients)} {part} clients hold no sample (the first is client {empty[0]}): "
                    "use fewer clients, less class or size imbalance, or the scheme 'paired'"
                )
            if not torch.isfinite(clients.x).all():
                raise BadInput(f"the {part} features contain NaN or infinite values: remove these samples first")
            if int(clients.y.min()) < 0 or int(clients.y.max()) >= self.classes:
                raise BadInput(
                    f"{part} labels run from {int(clients.y.min())} to {int(clients.y.max())} "
                    f"but must lie between 0 and {self.classes - 1}: renumber them from 0"
                )
        if len(self.train) < 2:
            raise BadInput("a federation needs at least two training clients: raise the number of clients")
        if self.paired and len(self.train) != len(self.test):
            raise BadInput(
                f"{len(self.train)} training and {len(self.test)} testing clients cannot be paired: "
                "give as many testing as training clients, or paired=False"
            )

    @property
    def features(self) -> int:
        """D, the number of features of a sample."""
        return int(self.train.x.shape[1])

    def raw(self, client: int) -> Tensor:
        """The features of a training client before preprocessing, (n, D)."""
        return self.train.x[self.train.rows(client)] * self.scale + self.shift

    def to(self, device: torch.device | str) -> "Federation":
        """The same federation with its samples on a device."""

        def move(clients: Clients) -> Clients:
            return replace(clients, x=clients.x.to(device), y=clients.y.to(device))

        return replace(
            self,
            train=move(self.train),
            test=move(self.test),
            shift=self.shift.to(device),
            scale=self.scale.to(device),
        )

    def relabelled(self, order: Sequence[int]) -> "Federation":
        """The same federation with its training clients in another order; paired testing clients move along."""
        test = self.test.reordered(order) if self.paired else self.test
        return replace(self, train=self.train.reordered(order), test=test)
