"""What is predicted: classes, one of two classes, or a number; and how the values of a column become a target."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkin.data.measure import ACCURACY, MSE, Measure
from fedkin.errors import BadInput, nearest

# How a task is called in settings, and the kind of target that it has. `auto` decides by the values.
TASKS = {"auto": "", "classes": "classes", "binary": "binary", "regression": "number"}
SCALINGS = ("none", "standardise", "minmax")

MOST_CLASSES = 100_000  # more are identifiers, not classes: models have a row of weights per class
# More different whole numbers than MANY look like a quantity; if one is rarer than RARE, `auto` does not decide.
MANY, RARE = 20, 5


@dataclass(frozen=True)
class Target:
    """What is predicted.

    kind   `classes`: one of K classes, K scores, cross-entropy; `binary`: one of two classes, one score (the log-odds
           of the second), logistic loss; `number`: a real number, one output, squared loss ½(z − y)²
    names  of the classes, in the order of their numbers; (): their numbers
    name   of the target column, if it has one
    shift, scale  of a number: models learn y = (value − shift) / scale; measures are in units of the value
    """

    kind: str = "classes"
    names: tuple[str, ...] = ()
    name: str = ""
    shift: float = 0.0
    scale: float = 1.0

    @property
    def is_number(self) -> bool:
        """Whether a number is predicted, not a class."""
        return self.kind == "number"

    @property
    def measure(self) -> Measure:
        """The main measure of models: the accuracy, or the mean squared error of a number."""
        return MSE if self.is_number else ACCURACY

    def outputs(self, classes: int) -> int:
        """The number of outputs of a model: K scores for K classes, 1 for one of two classes and for a number."""
        return classes if self.kind == "classes" else 1

    def counted(self, classes: int) -> str:
        """What is predicted in words: `10 classes`, `a number`."""
        what = "a number" if self.is_number else f"{classes} classes"
        return f"{what} ({self.name})" if self.name else what

    def text(self, number: int) -> str:
        """The name of a class."""
        return self.names[number] if self.names else str(number)

    def encoded(self, values: ArrayLike, where: str = "y") -> NDArray[Any]:
        """Values as the models learn them: numbers of classes (int64), or scaled numbers (float32)."""
        found = column(values, where)
        if self.is_number:
            return ((_finite(found, where) - self.shift) / self.scale).astype(np.float32)
        if not self.names:
            return found.astype(np.int64)
        texts = _texts(found)
        known, order = np.unique(np.array(self.names), return_index=True)
        place = np.minimum(np.searchsorted(known, texts), len(known) - 1)
        if (other := known[place] != texts).any():
            raise BadInput(f"{where} holds the class '{texts[other][0]}'{nearest(str(texts[other][0]), self.names)}")
        return order[place].astype(np.int64)

    def scaled(self, values: NDArray[Any], scaling: str) -> "Target":
        """The same target with the shift and scale of a column of numbers.

        none         shift 0, scale 1
        standardise  mean and standard deviation
        minmax       the smallest value and the range: the values become 0 to 1
        """
        if scaling not in SCALINGS:
            raise BadInput(f"there is no scaling '{scaling}' of a target{nearest(scaling, SCALINGS)}")
        if not self.is_number or scaling == "none":
            return self
        numbers = values.astype(np.float64)
        if scaling == "minmax":
            return replace(self, shift=float(numbers.min()), scale=float(np.ptp(numbers)) or 1.0)
        return replace(self, shift=float(numbers.mean()), scale=float(numbers.std()) or 1.0)


NUMBERED = Target()  # numbered ones


def column(values: ArrayLike, where: str = "y") -> NDArray[Any]:
    """The values of a target column as an array (N,) of numbers, booleans or strings."""
    try:
        found = np.asarray(values)
    except ValueError as error:
        raise BadInput(f"{where} is ragged: give one value per sample") from error
    if found.dtype.kind == "O" and all(isinstance(value, str) for value in found.flat):
        found = found.astype(str)
    if found.dtype.kind == "S":
        found = np.char.decode(found, errors="replace")
    if found.size and found.dtype.kind not in "biufU":
        raise BadInput(f"{where} is of type {found.dtype}: give numbers or strings, without missing values")
    return found


def target_of(values: ArrayLike, task: str = "auto", *, where: str = "y", name: str = "") -> Target:
    """The target of a column with these values, of all clients and parts together.

    `auto`: strings, booleans and whole numbers are classes, numbers with fractions a regression. More than MANY
    different whole numbers, of which some are rare, can be either: the user has to say.
    """
    if task not in TASKS:
        raise BadInput(f"there is no task '{task}'{nearest(task, TASKS)}")
    found = column(values, where)
    kind = TASKS[task] or _guessed(found, where)
    if kind == "number":
        if found.dtype.kind not in "iuf":
            raise BadInput(f"{where} is of type {found.dtype}, which is no number to predict: use the task 'classes'")
        if len(found) and np.ptp(_finite(found, where)) == 0:
            raise BadInput(f"{where} is {found[0]} throughout: there is nothing to predict, give another target")
        return Target("number", name=name)
    distinct = np.unique(_finite(found, where) if found.dtype.kind == "f" else found)
    if len(distinct) >= MOST_CLASSES:
        raise BadInput(
            f"{where} has {len(distinct):,} different values, too many for classes: use the task 'regression', or "
            "another target"
        )
    if len(distinct) < 2 or (kind == "binary" and len(distinct) > 2):
        wanted = "exactly two" if kind == "binary" else "at least two"
        raise BadInput(f"{where} has {_counted(distinct)}: give samples of {wanted} classes")
    plain = found.dtype.kind in "iuf" and np.array_equal(distinct, np.arange(len(distinct)))
    return Target(kind, () if plain else tuple(_texts(distinct).tolist()), name)


def _guessed(found: NDArray[Any], where: str) -> str:
    """The kind of target that values look like."""
    if found.dtype.kind not in "iuf":
        return "classes"
    if found.dtype.kind == "f" and (_finite(found, where) != np.floor(found)).any():
        return "number"
    distinct, counts = np.unique(found, return_counts=True)
    if len(distinct) <= MANY:
        return "classes"
    seen = f"{where} has {len(distinct):,} different whole numbers from {distinct[0]:g} to {distinct[-1]:g}"
    if counts.min() < RARE:
        raise BadInput(
            f"{seen}, which can be classes or a quantity: say which, --set data.task=classes or regression "
            "(in Python: task='classes')"
        )
    warnings.warn(
        f"{seen}, which are taken as classes: if they are a quantity, --set data.task=regression "
        "(in Python: task='regression')",
        stacklevel=2,
    )
    return "classes"


def _finite(found: NDArray[Any], where: str) -> NDArray[np.float64]:
    numbers = found.astype(np.float64)
    # Larger values are infinite as float32, and so are their squares.
    if (bad := ~(np.abs(numbers) <= np.finfo(np.float32).max)).any():
        raise BadInput(f"{where} holds the value {found[bad][0]}: remove these samples, or replace the value")
    return numbers


def _texts(found: NDArray[Any]) -> NDArray[np.str_]:
    """Values as names of classes; whole numbers are written without a fraction, whatever their type."""
    if found.dtype.kind != "f":
        return found.astype(str)
    distinct, place = np.unique(found, return_inverse=True)
    return np.array([f"{v:.0f}" if v == np.floor(v) else str(v) for v in distinct.tolist()])[place]


def _counted(distinct: NDArray[Any]) -> str:
    shown = ", ".join([*map(str, distinct[:3].tolist()), *["…"] * (len(distinct) > 3)])
    return f"{len(distinct):,} different value{'s' * (len(distinct) != 1)} ({shown})"
