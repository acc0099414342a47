"""Samples, Gram matrices and batches of a cohort in sample space."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.data.federation import Clients
from fedkin.engine.spaces.plain import Batches, is_run
from fedkin.models import Layered
from fedkin.types import Integers


@dataclass(frozen=True)
class Prepared:
    """A cohort's samples in sample space, which are the same in every round.

    x (c, n, D), ones (c, 1, n), coded (c, 1, K, n), gram (c, n, n) = x xᵀ + 1. Clients with fewer than n samples are
    padded with zeros, also in `ones`, so that the padding has no effect.
    """

    x: Tensor
    ones: Tensor
    coded: Tensor
    gram: Tensor


def prepare(clients: Clients, cohort: Integers, model: Layered) -> Prepared:
    """Gather and pad the samples of a cohort, and compute their Gram matrices."""
    sizes = clients.sizes[cohort]
    n = int(sizes.max())
    y = clients.y.new_zeros(len(cohort), n)
    if (sizes == n).all() and is_run(cohort):
        rows = slice(int(clients.offsets[cohort[0]]), int(clients.offsets[cohort[-1] + 1]))
        x = clients.x[rows].view(len(cohort), n, -1)
        y = clients.y[rows].view(len(cohort), n)
        ones = x.new_ones(len(cohort), 1, n)
    else:
        x = clients.x.new_zeros(len(cohort), n, clients.x.shape[1])
        ones = x.new_zeros(len(cohort), 1, n)
        for j, i in enumerate(cohort):
            x[j, : sizes[j]], y[j, : sizes[j]], ones[j, 0, : sizes[j]] = (
                clients.x[clients.rows(i)],
                clients.y[clients.rows(i)],
                1,
            )
    coded = model.loss.coded(y, model.outputs).to(x) * ones
    return Prepared(x, ones, coded.contiguous()[:, None], torch.baddbmm(ones.mT @ ones, x, x.mT))


@dataclass(frozen=True)
class GramBatch:
    """One batch of each client of a cohort, with the same rows at all clients; some may be shorter.

    weight  weight of the samples in the mean loss, 0 for padding: a number, or (c, 1, 1, B)
    coded   targets in the form of scores (`Loss.coded`), (c, 1, K, B)
    reach   the trail is zero from this sample on
    gram    the batch's columns of the Gram matrix, (c, reach, B)
    """

    rows: slice | Tensor
    weight: float | Tensor
    coded: Tensor
    reach: int
    gram: Tensor


def batches_of(ready: Prepared, per_client: Batches) -> list[GramBatch]:
    """The batches of a cohort in a round; repeated batches, as in epochs of fixed order, are the same objects."""
    made: dict[tuple[int, int, int], GramBatch] = {}
    batches, reach, samples = [], 0, ready.x.shape[1]
    for own in zip(*per_client, strict=True):
        longest, counts = max(own, key=len), [len(b) for b in own]
        stop, run = int(longest[-1]) + 1, is_run(longest)
        key = (int(longest[0]), stop, reach)
        if run and key in made:
            batches.append(made[key])
        else:
            rows = slice(int(longest[0]), stop) if run else torch.as_tensor(longest, device=ready.x.device)
            weight: float | Tensor = 1 / counts[0]
            if min(counts) < max(counts):
                weight = 1 / ready.x.new_tensor(counts).view(-1, 1, 1, 1) * ready.ones[:, None][..., rows]
            # In shuffled order the columns are a copy, which is too large to keep for all batches.
            gram = ready.gram[:, rows, :reach].mT if run else ready.gram
            batches.append(GramBatch(rows, weight, ready.coded[..., rows], reach, gram))
            if run:
                made[key] = batches[-1]
        reach = max(reach, stop) if run else samples
    return batches
