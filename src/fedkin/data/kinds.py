"""Clients in kinds: groups of clients whose images are rotated, features reordered or labels permuted alike.

Training, validation and testing samples of a client get the same transform, so that its testing samples measure how
well a model serves it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.data.apportion import largest_remainders, without_zeros
from fedkin.data.federation import Clients, Federation
from fedkin.data.streams import stream
from fedkin.errors import BadInput, nearest
from fedkin.types import Floats, Integers

DIFFERENCES = ("rotated", "permuted", "classes", "angles")


def kind_of_each(clients: int, kinds: int = 0, shares: Sequence[float] = (), *, seed: int = 0) -> Integers:
    """The kind of each client, (C,).

    Client i has the kind i mod `kinds`. With `shares`, kind g has the fraction s_g / Σ s of the clients (by largest
    remainders, at least one client), drawn at random.
    """
    kinds = kinds or len(shares)
    if not 1 <= kinds <= clients:
        raise BadInput(f"{clients} clients cannot form {kinds} kinds: use from 1 to {clients} kinds")
    if not len(shares):
        return np.arange(clients) % kinds
    if len(shares) != kinds:
        raise BadInput(f"there are {kinds} kinds but {len(shares)} shares: give one share for each kind")
    if not all(math.isfinite(share) and share > 0 for share in shares):
        raise BadInput(f"the shares of the kinds are {list(shares)}: give finite numbers above 0")
    quotas = np.asarray(shares, dtype=np.float64) / math.fsum(shares) * clients
    sizes = without_zeros(largest_remainders(quotas, clients))
    return stream(seed, "kinds").permutation(np.repeat(np.arange(kinds), sizes))


def in_kinds(
    federation: Federation,
    kinds: int = 0,
    *,
    shares: Sequence[float] = (),
    differ: str = "rotated",
    seed: int = 0,
    copy: bool = True,
) -> Federation:
    """The same federation with its clients in `kinds` groups that differ from each other; see `kind_of_each`.

    rotated   images of kind g are rotated by g · 360° / kinds counter-clockwise, with 0 as the raw value of the
              background. Rotations by multiples of 90° are exact, others interpolate linearly. Feature vectors
              have no angle: the features of each kind get an order of their own, drawn at random.
    permuted  labels of kind g go through a permutation of the classes, drawn at random
    angles    no kinds: each client's images are rotated by an angle of its own, uniform in [0°, 360°)

    Kind 0 stays as it is, and no two kinds get the same order. The shift and scale of the preprocessing stay. With
    `copy=False` the samples are changed in place, which saves memory for a federation that is not used afterwards.
    """
    if differ == "classes":
        raise BadInput(
            "existing clients cannot get classes of their own: use federate with differ = 'classes', without group"
        )
    if differ not in DIFFERENCES:
        raise BadInput(f"kinds of clients cannot differ by '{differ}'{nearest(differ, DIFFERENCES)}")
    require_paired(federation.paired)
    clients = len(federation.train)
    if differ == "angles":
        if kinds or len(shares):
            raise BadInput("with differ = 'angles' there are no kinds: leave out kinds and their shares")
        return _rotated(federation, stream(seed, "angles").uniform(0, 360, clients), copy)
    of = kind_of_each(clients, kinds, shares, seed=seed)
    number, known = kinds or len(shares), tuple(of.tolist())
    if differ == "permuted":
        if federation.target.is_number:
            raise BadInput("numbers to predict cannot be permuted as classes can: use differ = 'rotated'")
        maps = torch.from_numpy(_orders(federation.classes, "classes", number, seed))
        return _changed(federation, "y", lambda i, y: maps.to(y.device)[of[i]][y], copy, kinds=known)
    if len(federation.shape) == 3:
        return _rotated(federation, of * 360 / number, copy, kinds=known)
    orders = _orders(federation.features, "features", number, seed)
    return _changed(federation, "x", lambda i, x: _reordered(federation, orders[of[i]], x), copy, kinds=known)


def require_paired(paired: bool) -> None:
    """Only paired testing clients can have the transform of their training clients."""
    if not paired:
        raise BadInput(
            "clients in kinds need testing client i to belong to training client i: use the scheme 'paired', or as "
            "many testing as training clients"
        )


def _orders(length: int, what: str, kinds: int, seed: int) -> Integers:
    """A different order of 0 … length − 1 for each kind, (kinds, length); kind 0 has the usual one."""
    if length < 20 and math.factorial(length) < kinds:
        raise BadInput(f"{length} {what} have fewer than {kinds} different orders: use fewer kinds")
    rng, found = stream(seed, f"orders of {what}"), [np.arange(length)]
    while len(found) < kinds:
        order = rng.permutation(length)
        if not any(np.array_equal(order, other) for other in found):
            found.append(order)
    return np.array(found)


def _rotated(federation: Federation, angles: Floats, copy: bool, **known: Any) -> Federation:
    """Each client's images rotated by an angle in degrees."""
    if len(federation.shape) != 3:
        raise BadInput(f"{federation.name} has feature vectors, which have no angle: use differ = 'rotated'")
    total = (np.asarray(federation.angles or np.zeros(len(angles))) + angles) % 360
    known["angles"] = tuple(total.tolist())
    return _changed(federation, "x", lambda i, x: _turned(federation, float(angles[i]), x), copy, **known)


def _turned(federation: Federation, angle: float, x: Tensor) -> Tensor:
    """Preprocessed images, (n, D), rotated in raw units."""
    quarters, rest = divmod(angle, 90)
    _, height, width = federation.shape
    if rest == 0 and (height == width or quarters % 2 == 0):
        places = np.arange(federation.features).reshape(federation.shape)
        return _reordered(federation, np.rot90(places, int(quarters), axes=(1, 2)).ravel(), x)
    from scipy.ndimage import rotate  # slow to import

    raw = (x * federation.scale + federation.shift).cpu().numpy().reshape(-1, *federation.shape)
    turned = rotate(raw, angle, axes=(2, 3), reshape=False, order=1).reshape(x.shape)
    return (torch.from_numpy(turned).to(x.device) - federation.shift) / federation.scale


def _reordered(federation: Federation, order: Integers, x: Tensor) -> Tensor:
    """Preprocessed features, (n, D), in another order of the raw features r.

    x'ⱼ = (r_oⱼ − shiftⱼ) / scaleⱼ with r = x · scale + shift, written so that it is exact where all features have the
    same shift and scale.
    """
    shift, scale = federation.shift, federation.scale
    o = torch.from_numpy(np.ascontiguousarray(order)).to(x.device)
    return x[:, o] * (scale[o] / scale) + (shift[o] - shift) / scale


def _changed(
    federation: Federation, what: str, change: Callable[[int, Tensor], Tensor], copy: bool, **known: Any
) -> Federation:
    """The features `x` or labels `y`, changed client by client; `known` are further fields of the federation."""

    def of(clients: Clients) -> Clients:
        values = getattr(clients, what)
        values = values.clone() if copy else values
        for i in range(len(clients)):
            rows = clients.rows(i)
            values[rows] = change(i, values[rows])
        return replace(clients, **{what: values})

    validation = None if federation.validation is None else of(federation.validation)
    return replace(federation, train=of(federation.train), test=of(federation.test), validation=validation, **known)
