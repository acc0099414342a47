"""Averages of the models of kin."""

import math
from collections.abc import Callable
from itertools import product

import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn.functional import embedding_bag

from fedkin.buffers import room
from fedkin.graph.similarity import Matrix
from fedkin.threads import on_threads, one_core, threads_for

# Columns of models that a thread averages at a time.
COLUMNS_AT_ONCE = 1 << 16
# Numbers (4 bytes each) that fit into the private cache of a core, and the fewest columns that are worth a call.
CACHE_NUMBERS, FEWEST_COLUMNS = 1 << 18, 64

Average = Callable[[Tensor, Tensor], None]  # of models (n, P), written to (i, P)


def mixed(rows: Matrix, models: Tensor) -> Tensor:
    """Σₙ rows_in·wₙ of models (…, n, P), for every row i: (…, i, P). The work is in proportion to the entries.

    Threads share blocks of columns, which are the same for any number of threads, and so are the results.
    """
    (count, size), height = models.shape[-2:], rows.shape[0]
    out = room(models, *models.shape[:-2], height, size)
    if isinstance(rows, csr_array) and not rows.nnz:
        return out.zero_()
    average = _sparse(rows, models) if isinstance(rows, csr_array) else _dense(models.new_tensor(rows))
    lanes = math.prod(models.shape[:-2])
    read, written = models.reshape(lanes, count, size), out.view(lanes, height, size)

    def block(place: tuple[int, int]) -> None:
        lane, columns = place[0], slice(place[1], place[1] + COLUMNS_AT_ONCE)
        average(read[lane][:, columns], written[lane][:, columns])

    with one_core():
        on_threads(block, [*product(range(lanes), range(0, size, COLUMNS_AT_ONCE))], threads_for(models.device))
    return out


def _dense(rows: Tensor) -> Average:
    def average(models: Tensor, into: Tensor) -> None:
        torch.mm(rows, models, out=into)

    return average


def _sparse(rows: csr_array, models: Tensor) -> Average:
    index, first = (
        torch.as_tensor(part, dtype=torch.int64, device=models.device) for part in (rows.indices, rows.indptr)
    )
    by, count = models.new_tensor(rows.data), models.shape[-2]
    # Models that are read repeatedly are processed in columns that fit into the cache.
    width = max(FEWEST_COLUMNS, CACHE_NUMBERS // count) if rows.nnz > 2 * count else models.shape[-1]

    def average(models: Tensor, into: Tensor) -> None:
        for start in range(0, models.shape[-1], width):
            columns = slice(start, start + width)
            read = models[:, columns].contiguous()
            into[:, columns] = embedding_bag(
                index, read, first, mode="sum", per_sample_weights=by, include_last_offset=True
            )

    return average
