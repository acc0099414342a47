"""What protects the global model from replies that pass every check and are wrong all the same.

`SizeGuard` refuses replies that are far larger than usual, `LossWatch` says when the model has become far worse, and
`suspects` orders the clients by how much their replies differ from the others'.
"""

import math
import statistics
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedkin.flower.roster import from_text_tensor, text_tensor
from fedkin.types import Tensors

USUAL_SIZES = "usual sizes"  # name of the tensor in a checkpoint
TIMES = 100.0  # so many times the usual size is too large
SMALL = 0.1  # a root mean square change of a parameter that is never too large
REMEMBERED = 5  # rounds by which the usual is known
WORSE = 10.0  # so many times the usual loss is far worse, if it is worse than the first one, too


def low_median(values: Iterable[float]) -> float:
    """The median; of an even number, the lower one of the middle: of two values, the smaller."""
    return statistics.median_low(list(values))


class SizeGuard:
    """Refuses replies that are far larger than usual.

    max_norm  the largest ‖wᵢ − w̄‖ (None: any), or `auto`

    The size of a reply is ‖wᵢ − w̄‖, and ‖v‖ of every other vector v that the algorithm's clients send. With `auto` it
    may be at most

        max(100 · s, 0.1 · √q, ‖w̄‖)        (without ‖w̄‖ for other vectors)

    where s is the larger one of the medians of the round's sizes and of the last five rounds', and q the number of
    entries. Sizes that differ by the number of samples and steps stay far below; a minority of any size does not move
    the medians. A single reply says nothing about what is usual in its round: only the last rounds do then.
    """

    def __init__(self, max_norm: float | str | None, saved: Mapping[str, Tensor] | None = None) -> None:
        self.max_norm = max_norm
        found = (saved or {}).get(USUAL_SIZES)
        self._usual: dict[str, list[float]] = {} if found is None else from_text_tensor(found)

    def tensors(self) -> Tensors:
        """What is usual, to be saved with the server's state."""
        return {USUAL_SIZES: text_tensor(self._usual)} if self._usual else {}

    def too_large(self, replies: Mapping[int, Tensors], model: Tensor) -> dict[int, str]:
        """The clients whose replies are too large, with the reason; `model` is w̄, (P,)."""
        found: dict[int, str] = {}
        for name, sizes in self._sizes(replies, model).items():
            entries = next(iter(replies.values()))[name].numel()
            most, rule = self._limit(name, sizes, model, entries)
            for client, size in sizes.items():
                if size > most:
                    lies = "the model lies" if name == "model" else f"{name} has a norm of"
                    far = " from the global one" if name == "model" else ""
                    found[client] = f"{lies} {size:.3g}{far}, more than {rule} = {most:.3g}"
        return found

    def learn(self, replies: Mapping[int, Tensors], model: Tensor) -> None:
        """Remember the sizes of replies that were used."""
        for name, sizes in self._sizes(replies, model).items():
            kept = [*self._usual.get(name, []), low_median(sizes.values())]
            self._usual[name] = kept[-REMEMBERED:]

    def _limit(self, name: str, sizes: Mapping[int, float], model: Tensor, entries: int) -> tuple[float, str]:
        if self.max_norm is None:
            return math.inf, ""
        if name == "model" and not isinstance(self.max_norm, str):
            return self.max_norm, "max_norm"
        before = self._usual.get(name, [])
        medians = [low_median(before)] if before else []
        if len(sizes) > 1 or not before:
            medians.append(low_median(sizes.values()))
        norm = float(torch.linalg.vector_norm(model.double())) if name == "model" else 0.0
        return max(TIMES * max(medians), SMALL * math.sqrt(entries), norm), f"{TIMES:g} times what is usual"

    def _sizes(self, replies: Mapping[int, Tensors], model: Tensor) -> dict[str, dict[int, float]]:
        """The size of every vector of every client's reply."""
        names = next(iter(replies.values()), {})
        return {
            name: {client: _size(name, vectors[name], model) for client, vectors in replies.items()} for name in names
        }


def _size(name: str, vector: Tensor, model: Tensor) -> float:
    is_model = name == "model" and vector.shape == model.shape
    return float(torch.linalg.vector_norm(vector.double() - model.double() if is_model else vector.double()))


class LossWatch:
    """Says when a loss is worse by an order of magnitude: above the first one, and above 10 times the usual.

    Usual is the median of the last five rounds. A loss that is not finite is worse, too.
    """

    def __init__(self) -> None:
        self._first: float | None = None
        self._recent: list[float] = []

    def see(self, loss: float | None) -> None:
        """Remember the loss after a round."""
        if loss is not None and math.isfinite(loss):
            self._first = loss if self._first is None else self._first
            self._recent = [*self._recent, loss][-REMEMBERED:]

    @property
    def usual(self) -> float:
        """The median of the last losses; NaN if there is none."""
        return low_median(self._recent) if self._recent else math.nan

    def is_worse(self, loss: float | None) -> bool:
        """Whether a round with this loss made the model far worse."""
        if loss is None:
            return False
        if not math.isfinite(loss):
            return True
        return self._first is not None and loss > self._first and loss > WORSE * abs(self.usual)


def loss_in(numbers: Mapping[str, object] | None) -> float | None:
    """The loss among measurements: that of training, of testing, or whatever is called a loss."""
    found = {key: value for key, value in (numbers or {}).items() if str(key).endswith("loss")}
    key = next((key for key in ("train_loss", "test_loss", "loss", *found) if key in found), None)
    value = found.get(key) if key else None
    if key and value is None:
        return math.nan  # in a record, a number that was not finite
    return float(value) if isinstance(value, int | float) else None


def suspects(replies: Mapping[int, Tensors], before: Tensor) -> list[list[int]]:
    """Sets of clients that may have spoiled a round, in the order in which they are to be tried.

    Clients are ordered by the distance of their model from the entrywise median of all, and the first one is tried, the
    first two and so on, always fewer than half. Of two clients each is tried, the one with the larger step first.
    """
    models = {client: vectors["model"].double() for client, vectors in replies.items() if "model" in vectors}
    if len(models) < 2:
        return []
    # Of two there is no median: how far they have moved from w̄ decides.
    same = all(model.shape == before.shape for model in models.values())
    centre = before.double() if len(models) == 2 and same else torch.stack(list(models.values())).median(0).values
    far = sorted(models, key=lambda client: -float(torch.linalg.vector_norm(models[client] - centre)))
    return [[client] for client in far] if len(far) == 2 else [far[: k + 1] for k in range((len(far) - 1) // 2)]
