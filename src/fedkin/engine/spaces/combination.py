"""Linear combinations of named vectors: an algorithm's step in symbolic form."""

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# A number, or one value per lane, (L, 1, 1): a tensor, or a NumPy array within combinations.
Scalar = float | NDArray[np.float64] | Tensor
Factor = float | Tensor  # a scalar as a tensor is multiplied by it
LARGEST = torch.finfo(torch.float32).max


class Combination:
    """A linear combination Σ cⱼ·bⱼ of named basis vectors: supports + and − of combinations, × and ÷ by scalars.

    Scalars of lanes are NumPy arrays: most operations are on scalars, and NumPy's take a quarter of the time of
    PyTorch's. Double precision keeps 1 − γα + γα at 1.
    """

    __slots__ = ("terms",)
    __array_ufunc__ = None  # array * combination calls Combination.__rmul__

    def __init__(self, terms: dict[str, Scalar]) -> None:
        self.terms = terms

    def __add__(self, other: "Combination") -> "Combination":
        terms = dict(self.terms)
        for name, scalar in other.terms.items():
            terms[name] = terms[name] + scalar if name in terms else scalar
        return Combination(terms)

    def __mul__(self, scalar: Scalar) -> "Combination":
        if isinstance(scalar, Combination):
            raise TypeError("a combination can be multiplied by a scalar only")
        if is_zero(scalar):
            return Combination({})
        scalar = doubled(scalar)
        return Combination({name: scalar * own for name, own in self.terms.items()})

    __rmul__ = __mul__

    def __sub__(self, other: "Combination") -> "Combination":
        return self + -1.0 * other

    def __neg__(self) -> "Combination":
        return -1.0 * self

    def __truediv__(self, scalar: Scalar) -> "Combination":
        return self.__mul__(1 / scalar)

    def of_something(self, name: str) -> "Combination":
        """The same, with at least one term: zero is zero times the named vector."""
        return self if self.terms else Combination({name: 0.0})

    @property
    def name(self) -> str:
        """The name of the only basis vector; an error if it is a proper combination."""
        ((name, scalar),) = self.terms.items()
        if not is_one(scalar):
            raise TypeError("a received or remembered vector itself is needed")
        return name

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, args: tuple[Any, ...] = (), __: Any = None) -> "Combination":
        """Tensor * combination. Without this method PyTorch raises and catches an exception, which is slow."""
        if getattr(function, "__name__", "") not in ("mul", "__mul__", "__rmul__", "multiply") or len(args) != 2:
            raise TypeError(f"{function} is not defined for combinations")
        combination: Combination
        combination, scalar = args if isinstance(args[0], Combination) else reversed(args)
        return combination.__mul__(scalar)


def doubled(scalar: Scalar) -> Scalar:
    """A scalar as combinations have it: in double precision, those of lanes as a NumPy array."""
    return scalar.cpu().numpy().astype(np.float64) if isinstance(scalar, Tensor) else scalar


def factor(scalar: Scalar, device: torch.device) -> Factor:
    """A combination's scalar as what a tensor (…, P) or (…, O, n) can be multiplied by.

    Above what single precision holds it is infinite: a diverging lane is reported by the engine.
    """
    if isinstance(scalar, np.ndarray):
        with np.errstate(over="ignore"):
            return torch.from_numpy(scalar.astype(np.float32)).to(device)
    if isinstance(scalar, Tensor) or not abs(scalar) > LARGEST:
        return scalar
    return math.copysign(math.inf, scalar)  # in a sum, PyTorch would refuse it


def is_zero(scalar: Scalar) -> bool:
    """Whether a term with this scalar can be omitted."""
    return isinstance(scalar, float | int) and scalar == 0


def is_one(scalar: Scalar) -> bool:
    """Whether this factor can be omitted."""
    return isinstance(scalar, float | int) and scalar == 1


def combined(terms: Sequence[tuple[Scalar, Tensor]], out: Tensor | None = None) -> Tensor:
    """Σ scalar · tensor, with as few passes over memory as possible, written to `out` if given.

    Without `out`, a single tensor times 1 is returned without a copy.
    """
    z: Tensor | None = None
    own = False  # whether z may be written to
    for scalar, part in terms:
        if own and z is not None:
            add(z, scalar, part)
        elif z is None and is_one(scalar):
            z = part
        else:
            by = factor(scalar, part.device)
            if z is None:
                z = torch.mul(part, by, out=out)
            elif isinstance(by, Tensor):
                z = torch.addcmul(z, part, by, out=out)
            else:
                z = torch.add(z, part, alpha=by, out=out)
            own = True
    assert z is not None, "without terms it has no shape"
    return z if own or out is None else out.copy_(z)


def add(out: Tensor, scalar: Scalar, part: Tensor) -> None:
    """Add scalar · part to `out`, in one pass."""
    by = factor(scalar, part.device)
    if isinstance(by, Tensor):
        out.addcmul_(part, by)
    else:
        out.add_(part, alpha=by)


def proportion(mixture: dict[str, Scalar], point: dict[str, Scalar]) -> Scalar | None:
    """The scalar s with mixture = s · point in all lanes, up to rounding; None if there is none."""
    if mixture.keys() != point.keys():
        return None
    pivot = max(point, key=lambda name: float(np.min(np.abs(point[name]))))
    if not np.all(point[pivot]):
        return None
    ratio = mixture[pivot] / point[pivot]
    if np.all(np.abs(ratio - 1.0) <= 1e-9):
        ratio = 1.0
    close = all(bool(np.all(np.abs(own - ratio * point[name]) <= 1e-9 * np.abs(own))) for name, own in mixture.items())
    return ratio if close else None


def is_moderate(scale: Scalar) -> bool:
    """Whether division by the scale keeps precision, in all lanes."""
    if isinstance(scale, np.ndarray):
        return bool(scale.min() > 0.1 and scale.max() < 10)
    return bool(0.1 < scale < 10)


T = TypeVar("T", Scalar, Factor)


def squeezed(scalar: T) -> T:
    """A scalar for arrays (c, L, O, n) as a scalar for vectors (c, L, P)."""
    return scalar[..., 0] if isinstance(scalar, np.ndarray | Tensor) else scalar
