"""Divisions of published code, in which clients share samples: no scheme for experiments of one's own."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedkin.data import sources
from fedkin.errors import BadInput
from fedkin.files import writable_folder
from fedkin.types import Integers

Division = Callable[[Integers], list[Integers]]  # from the classes of all samples to the samples of each client


def pfedme_clients(y: Integers, clients: int = 20, classes_each: int = 2) -> list[Integers]:
    """The samples of each client as pFedMe's code drew them when its values were published (June 2020).

    Client i has the classes i and i + 1. The n clients of a class with N samples are to have between N/(n+1) and N/2 of
    those that are left, one after the other, and the last one has the rest. But the counter of samples that are used up
    is an array of truth values, so that every client has the first samples of its class (but the very first, if it is
    not the first client). Of 70,000 digits 23,537 are in use, most of them at several clients, and a client is tested
    on samples that others train with. With 3/4 of them for training, clients have 1,165 to 3,834 samples, which are
    the numbers of the publication; they cannot be had without this slip.
    """
    classes = int(y.max()) + 1
    random = np.random.RandomState(1)
    each = clients * classes_each // classes
    sizes = []
    for label in range(classes):
        left, own = int((y == label).sum()), []
        for _ in range(each - 1):
            own.append(int(random.randint(left // (each + 1), left // 2)))
            left -= own[-1]
        sizes.append([*own, left])
    # In the order of clients and their classes, whatever the class: first those of every class's first client, …
    drawn = iter([own[k] for k in range(each) for own in sizes])
    seen: set[int] = set()
    parts = []
    for client in range(clients):
        rows = []
        for label in ((client + k) % classes for k in range(classes_each)):
            rows.append(np.flatnonzero(y == label)[int(label in seen) : next(drawn)])
            seen.add(label)
        parts.append(np.concatenate(rows))
    return parts


DIVISIONS: dict[str, Division] = {"pfedme": pfedme_clients}


def write_division(name: str, source: str, data: Path | None, out: Path) -> Path:
    """Write all samples of a data set as clients that share some: an npz file with the group `client`."""
    if name not in DIVISIONS:
        raise BadInput(f"there is no division '{name}': choose one of {', '.join(DIVISIONS)}")
    dataset = sources.load(source, data)
    x, y = (np.concatenate(part) for part in ((dataset.x_train, dataset.x_test), (dataset.y_train, dataset.y_test)))
    parts = DIVISIONS[name](y)
    rows, path = np.concatenate(parts), out / f"{source}-{name}-clients.npz"
    writable_folder(out, "--out")
    np.savez(path, x=x[rows], y=y[rows], client=np.repeat(np.arange(len(parts)), [len(part) for part in parts]))
    return path
