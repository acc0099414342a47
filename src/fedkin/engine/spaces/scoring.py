"""Scores of linear models, compiled by Numba (`fedkin[fast]`): for measurements after every round.

A BLAS library copies the samples into its own layout before it multiplies them by the few rows of a linear model. Here
they are read once, where they are.
"""

import numpy as np
import torch
from torch import Tensor

from fedkin.compiler.compilation import compiled
from fedkin.compiler.vectors import NUMBER
from fedkin.engine.spaces.primal_kernels import STRIP, layer_scores
from fedkin.engine.spaces.primal_loops import SAMPLES

SCORED_AT_ONCE = 64  # samples that are scored at once: they stay in a core's cache for all models


@compiled("(float32[:, ::1], int64, int64, int64, int64, float32[:, :, ::1])")
def _linear_scores(w, x, row, samples, features, out):  # type: ignore[no-untyped-def]
    """Scores (L, K, n) under models (L, P) of samples at the address x, which begin every `row` bytes."""
    outputs = out.shape[1]
    starts, edge = np.empty(SCORED_AT_ONCE + SAMPLES, dtype=np.int64), np.empty((outputs, STRIP), dtype=np.float32)
    z = np.empty((outputs, SCORED_AT_ONCE), dtype=np.float32)
    for first in range(0, samples, SCORED_AT_ONCE):
        many = min(SCORED_AT_ONCE, samples - first)
        for i in range(len(starts)):
            starts[i] = x + min(first + i, samples - 1) * row
        for lane in range(len(w)):
            layer_scores(w[lane], features, starts, many, z, edge)
            out[lane, :, first : first + many] = z[:, :many]


def linear_scores(w: Tensor, x: Tensor) -> Tensor:
    """Scores W x + b of samples x (n, D) under models w (L, (D+1)·K): (L, K, n)."""
    samples, features = x.shape
    if x.dtype != torch.float32 or w.dtype != torch.float32 or x.stride(1) != 1:
        raise ValueError(f"consecutive float32 numbers are needed, not {x.dtype} and {w.dtype}")
    out = torch.empty(len(w), w.shape[1] // (features + 1), samples)
    _linear_scores(w.contiguous().numpy(), x.data_ptr(), x.stride(0) * NUMBER, samples, features, out.numpy())
    return out
