"""A federation: the data of its training clients and testing clients.

The samples of all clients are in one array, ordered by client, with an array of offsets: ragged, without padding.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.data.apportion import stratified
from fedkin.data.division import held_out_rows
from fedkin.data.encoding import Encoding
from fedkin.data.streams import stream
from fedkin.data.target import NUMBERED, Target
from fedkin.errors import BadInput
from fedkin.markup import facts_table
from fedkin.types import Integers


@dataclass(frozen=True)
class Clients:
    """Samples of C clients: client i holds rows `offsets[i]` to `offsets[i + 1]` of `x` and `y`.

    x        (N, D) float32, preprocessed, one flattened sample per row
    y        (N,)   int64, the class of each sample, or float32, the number to be predicted
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

    def subset(self, chosen: NDArray[np.bool_]) -> "Clients":
        """The same clients with the chosen samples only, given as a mask, (N,)."""
        sizes = np.diff(np.concatenate([[0], np.cumsum(chosen)])[self.offsets])
        mask = torch.from_numpy(chosen).to(self.x.device)
        return from_rows(self.x[mask], self.y[mask], sizes, self.names)

    def held_out(self, share: float, seed: int, numbers: Iterable[int]) -> tuple["Clients", "Clients"]:
        """The same clients without and with only the validation samples, which depend on seed and client number."""
        # Numbers have no classes: with a stratum for each value, the most frequent values would be held out.
        y = np.zeros(len(self.y), dtype=np.int64) if self.y.is_floating_point() else self.y.cpu().numpy()
        held = np.zeros(len(self.y), dtype=np.bool_)
        for client, start, n in zip(numbers, self.offsets[:-1], self.sizes, strict=True):
            rows = held_out_rows(y[start : start + n], share, seed, f"validation samples of {client}")
            held[start + rows] = True
        return self.subset(~held), self.subset(held)


def from_rows(x: Tensor, y: Tensor, sizes: Integers, names: tuple[str, ...] = ()) -> Clients:
    """Clients from samples that are already ordered by client."""
    return Clients(x, y, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), names)


@dataclass(frozen=True)
class Federation:
    """Training and testing clients, and the properties common to all of them.

    classes      K, the number of classes; 1 if a number is predicted
    shape        of one sample: (channels, height, width) for images, (D,) for feature vectors
    shift, scale the preprocessing: x = (raw − shift) / scale, each (D,) float32. Messages are computed from the raw
                 features.
    paired       whether testing client i belongs to training client i: the same origin, or the same class mix and
                 share of samples. Only then do measures over testing clients, such as the accuracy of the worst
                 decile, say how well training clients are served, and can a client's own model be tested.
    validation   samples that client i holds out from training, of the same origin as its training samples; a client
                 with a single sample has none
    kinds        the group of each training client, where clients come in groups that differ
    angles       by which the images of each client are rotated, in degrees counter-clockwise
    newcomers    clients that are never sampled for training, in ascending order
    whole        whether the raw features are integers other than pixels, such as tokens
    target       what is predicted
    encoding     how rows of a table become features; None if the clients' data are arrays
    own_scales   shift and scale of each testing client, (C, D) each, if clients have standardised their features by
                 themselves; for `shift` and `scale` the raw features are those after it
    """

    train: Clients
    test: Clients
    classes: int
    shape: tuple[int, ...]
    shift: Tensor
    scale: Tensor
    name: str = "federation"
    paired: bool = False
    validation: Clients | None = None
    kinds: tuple[int, ...] | None = None
    angles: tuple[float, ...] | None = None
    newcomers: tuple[int, ...] = ()
    whole: bool = False
    target: Target = NUMBERED
    encoding: Encoding | None = None
    own_scales: tuple[Tensor, Tensor] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for part, clients in (("training", self.train), ("testing", self.test)):
            if (empty := np.flatnonzero(clients.sizes == 0)).size:
                raise BadInput(
                    f"{empty.size} of {len(clients)} {part} clients hold no sample (the first is client {empty[0]}): "
                    "use fewer clients, less class or size imbalance, or the scheme 'paired'"
                )
            self._check_samples(part, clients)
        if len(self.train) < 2:
            raise BadInput("a federation needs at least two training clients: raise the number of clients")
        if self.paired and len(self.train) != len(self.test):
            raise BadInput(
                f"{len(self.train)} training and {len(self.test)} testing clients cannot be paired: "
                "give as many testing as training clients, or paired=False"
            )
        if self.validation is not None:
            self._check_samples("validation", self.validation)
        for what, values in (("validation", self.validation), ("kinds", self.kinds), ("angles", self.angles)):
            if values is not None and len(values) != len(self.train):
                raise BadInput(
                    f"{what} is given for {len(values)} clients but there are {len(self.train)} training clients: "
                    "give it for each of them"
                )
        if self.newcomers and not set(self.newcomers) < set(range(len(self.train))):
            raise BadInput(
                f"the newcomers are {list(self.newcomers)}: give numbers from 0 to {len(self.train) - 1}, and leave "
                "clients for training"
            )

    def __repr__(self) -> str:
        held = f", {len(self.validation.y):,} held out for validation" if self.validation is not None else ""
        return (
            f"Federation({self.name}: {len(self.train):,} clients, {len(self.train.y):,} training and "
            f"{len(self.test.y):,} testing samples{held}, {self.target.counted(self.classes)})"
        )

    def _repr_html_(self) -> str:
        sizes = self.train.sizes
        facts = {
            "clients": f"{len(self.train):,}"
            + (f", {len(self.newcomers):,} of them newcomers" if self.newcomers else ""),
            "training samples": f"{len(self.train.y):,}; {sizes.min():,} to {sizes.max():,} a client",
            "validation samples": "none" if self.validation is None else f"{len(self.validation.y):,}",
            "testing samples": f"{len(self.test.y):,} at {len(self.test):,} clients"
            + ("" if self.paired else ", which are not the training clients"),
            "shape of a sample": " × ".join(map(str, self.shape)),
            "to predict": self.target.counted(self.classes),
            **({"kinds": str(len(set(self.kinds)))} if self.kinds is not None else {}),
        }
        return facts_table(f"Federation {self.name}", facts)

    def _check_samples(self, part: str, clients: Clients) -> None:
        # A sum is finite only if all of it is, and takes a tenth of the time of a look at every number.
        if not torch.isfinite(clients.x.sum()) and not (good := torch.isfinite(clients.x)).all():
            row, feature = (~good).nonzero()[0].tolist()
            client = int(np.searchsorted(clients.offsets, row, side="right")) - 1
            name = f"'{clients.names[client]}'" if clients.names else str(client)
            raise BadInput(
                f"the {part} features contain NaN or infinite values (the first is feature {feature} of sample "
                f"{row - clients.offsets[client]} of client {name}): remove these samples first"
            )
        if self.target.is_number:
            if not clients.y.is_floating_point() or not torch.isfinite(clients.y).all():
                raise BadInput(f"the {part} targets are not all finite numbers: give them as float32")
            return
        if len(clients.y) and (int(clients.y.min()) < 0 or int(clients.y.max()) >= self.classes):
            raise BadInput(
                f"{part} labels run from {int(clients.y.min())} to {int(clients.y.max())} "
                f"but must lie between 0 and {self.classes - 1}: renumber them from 0"
            )

    @property
    def features(self) -> int:
        """D, the number of features of a sample."""
        return int(self.train.x.shape[1])

    @property
    def integers(self) -> Tensor | None:
        """The samples with the smallest and the largest number if all are unchanged integers, (2, D); else None."""
        changed = bool(self.shift.any()) or bool((self.scale != 1).any()) or self.own_scales is not None
        if not self.whole or changed:
            return None
        parts = [part.x for part in (self.train, self.test, self.validation) if part is not None and len(part.x)]
        least = min((x[int(x.min(dim=1).values.argmin())] for x in parts), key=lambda row: float(row.min()))
        most = max((x[int(x.max(dim=1).values.argmax())] for x in parts), key=lambda row: float(row.max()))
        return torch.stack([least, most])

    @property
    def outputs(self) -> int:
        """The number of outputs of a model: K scores for K classes, 1 for one of two classes and for a number."""
        return self.target.outputs(self.classes)

    @property
    def has_own_scales(self) -> bool:
        """Whether samples are feature vectors, each feature with a scale of its own, as columns of tables are."""
        return len(self.shape) == 1 and not bool((self.scale == self.scale[0]).all())

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
            validation=move(self.validation) if self.validation is not None else None,
            shift=self.shift.to(device),
            scale=self.scale.to(device),
            own_scales=self._own_scales(lambda each: each.to(device)),
        )

    def _own_scales(self, changed: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor] | None:
        if self.own_scales is None:
            return None
        shift, scale = self.own_scales
        return changed(shift), changed(scale)

    def relabelled(self, order: Sequence[int]) -> "Federation":
        """The same federation with its training clients in another order; what belongs to them moves along."""
        return replace(
            self,
            train=self.train.reordered(order),
            test=self.test.reordered(order) if self.paired else self.test,
            validation=self.validation.reordered(order) if self.validation is not None else None,
            kinds=tuple(self.kinds[i] for i in order) if self.kinds is not None else None,
            angles=tuple(self.angles[i] for i in order) if self.angles is not None else None,
            newcomers=tuple(new for new, old in enumerate(order) if old in self.newcomers),
            own_scales=self._own_scales(lambda each: each[list(order)]) if self.paired else self.own_scales,
        )

    def held_out(self, share: float, seed: int = 0) -> "Federation":
        """The same federation with a share of each client's training samples as validation samples instead.

        Of n samples, share · n are held out, rounded, but at least one if n ≥ 2, and at least one stays. The classes
        have the same shares in both parts, as far as whole numbers allow; which samples is drawn at random.
        """
        if not 0 <= share < 1:
            raise BadInput(f"the share of validation samples is {share}: it must be 0 or more and less than 1")
        if share == 0:
            return self
        if self.validation is not None:
            raise BadInput("this federation has validation samples already: start from the one without them")
        train, validation = self.train.held_out(share, seed, range(len(self.train)))
        return replace(self, train=train, validation=validation)

    def standardised_by_client(self) -> "Federation":
        """The same federation with every client's features standardised by its own training samples.

        Mean 0 and deviation 1 of each feature at each client; a feature that is constant there becomes 0. Validation
        and testing samples of a client get the same transform, which is kept as `own_scales`: with the shift s and the
        scale c before it, x = (raw − s)/c becomes (x − m)/d = (raw − (s + c m)) / (c d).
        """
        if not self.paired:
            raise BadInput(
                "features can be standardised by client only if testing client i belongs to training client i: use "
                "the scheme 'paired', or another preprocessing"
            )
        owner = torch.from_numpy(np.repeat(np.arange(len(self.train)), self.train.sizes)).to(self.train.x.device)
        sizes = torch.from_numpy(self.train.sizes).to(self.train.x.device)[:, None]

        def means(values: Tensor) -> Tensor:
            zeros = values.new_zeros(len(self.train), self.features, dtype=torch.float64)
            return zeros.index_add_(0, owner, values.double()) / sizes

        shift = means(self.train.x)
        scale = means((self.train.x.double() - shift[owner]).square()).sqrt()
        scale[scale < 1e-6 * shift.abs().clamp(min=1.0)] = 1.0  # constant up to rounding
        shift, scale = shift.float(), scale.float()  # as they are saved: predictions repeat the same arithmetic

        def changed(clients: Clients) -> Clients:
            of = np.repeat(np.arange(len(clients)), clients.sizes)
            return replace(clients, x=(clients.x - shift[of]) / scale[of])

        return replace(
            self,
            train=changed(self.train),
            test=changed(self.test),
            validation=changed(self.validation) if self.validation is not None else None,
            shift=torch.zeros_like(self.shift),
            scale=torch.ones_like(self.scale),
            own_scales=(self.shift + self.scale * shift, self.scale * scale),
        )

    def with_newcomers(self, share: float, seed: int = 0) -> "Federation":
        """The same federation with a share of its clients as newcomers, which are never sampled for training.

        Of C clients, share · C are newcomers, rounded, but at least one; the kinds have the same shares among them as
        among all clients, as far as whole numbers allow.
        """
        if not 0 <= share < 1:
            raise BadInput(f"the share of newcomers is {share}: it must be 0 or more and less than 1")
        if share == 0:
            return self
        clients = len(self.train)
        number = max(round(share * clients), 1)
        if number > clients - 2:
            raise BadInput(
                f"{number} newcomers among {clients} clients leave fewer than two for training: lower their share"
            )
        kinds = np.array(self.kinds if self.kinds is not None else [0] * clients)
        return replace(self, newcomers=tuple(stratified(kinds, number, stream(seed, "newcomers")).tolist()))

    def pooled(self, seed: int = 0) -> "Federation":
        """The training samples of all clients but the newcomers in one place: a reference that no federation can have.

        Testing clients stay as they are and belong to no training client. The samples are in random order, so that a
        batch has samples of all clients. Validation samples are pooled, too. Clients with the same data have no
        similarity: use the `uniform` graph.
        """
        members = [i for i in range(len(self.train)) if i not in self.newcomers]
        rng = stream(seed, "pooled samples")

        def twice(clients: Clients) -> Clients:
            # A federation has at least two training clients. Both hold all samples, start each round at the same
            # model and take the same batches, so their average is the model of each, as if there were only one.
            rows = np.concatenate([np.arange(clients.offsets[i], clients.offsets[i + 1]) for i in members])
            both = torch.from_numpy(np.tile(rng.permutation(rows), 2)).to(clients.x.device)
            return from_rows(clients.x[both], clients.y[both], np.full(2, len(rows)))

        return replace(
            self,
            train=twice(self.train),
            validation=twice(self.validation) if self.validation is not None else None,
            paired=False,
            kinds=None,
            angles=None,
            newcomers=(),
        )
