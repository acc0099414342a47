"""A training loss that grows in the first rounds: the most common sign of a step size that is too large.

The loss of the initial model is compared with the losses after the first five rounds. If few clients are sampled and
their data differ, single rounds often end above the initial loss. Therefore a loss has grown only if it is by a quarter
above the initial one after each of these rounds.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fedkin.engine.metrics import score
from fedkin.engine.own import own_scores
from fedkin.engine.simulation import Simulation, State
from fedkin.types import Record

WATCHED, FEWEST, RISE = 5, 3, 1.25  # rounds; rounds of a shorter run; last loss ÷ first loss


def growth_sentence(first: float, losses: Sequence[float | None]) -> str | None:
    """What to say about the losses after the first rounds, if all are far above the first; else None.

    >>> growth_sentence(2.0, [9.0, 3.0, 4.0])
    'the training loss grew from 2 to 4 in the first 3 rounds: try a smaller local.step_size'
    >>> growth_sentence(2.0, [9.0, 2.4, 4.0])
    """
    known = [loss for loss in losses if loss is not None]
    if len(known) < len(losses) or len(known) < FEWEST or not min(known) > RISE * first:
        return None
    change = f"from {first:.3g} to {known[-1]:.3g}"
    return f"the training loss grew {change} in the first {len(known)} rounds: try a smaller local.step_size"


def first_losses(group: Simulation, model: Tensor, l2: Sequence[float]) -> list[float]:
    """Training loss of the initial model, (1, P), for each run of a group with its own λ."""
    return [one.loss for one in score(group.computed_model, model.expand(len(l2), -1), group.federation.train, l2)]


def watched(state: State, rounds: int) -> bool:
    """Whether the losses of the first rounds are looked at after this round, the last one at the latest."""
    return state.round == min(WATCHED, rounds)


def growth_of(
    group: Simulation, state: State, first: Sequence[float], done: Sequence[Sequence[Record]]
) -> list[str | None]:
    """What to say about each run of a group after its first rounds, with these records.

    If clients have personal models, their average says nothing. Then it is the loss of these models that counts, which
    is measured after the last of the rounds only; so is that of the global model if few rounds were measured.
    """
    losses = [[record["train_loss"] for record in records if "train_loss" in record] for records in done]
    algorithm, means = group.algorithm.at(state.round), []
    if algorithm.is_personal and algorithm.adaptation(group.local) is None:
        who = group.trained_clients
        own = own_scores(group, state, {"train": group.federation.train})["train"]
        sizes = own[0].sizes[who]
        means = [float(one.losses[who] @ sizes / sizes.sum()) for one in own]
    elif min(map(len, losses)) < FEWEST:
        models = state.model.reshape(len(losses), -1)
        means = [one.loss for one in score(group.computed_model, models, group.federation.train)]
    if means:
        finite = [mean if np.isfinite(mean) else None for mean in means]
        losses = [[mean] * len(records) for mean, records in zip(finite, done, strict=True)]
    return [growth_sentence(*both) for both in zip(first, losses, strict=True)]
