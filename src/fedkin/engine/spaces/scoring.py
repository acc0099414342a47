"""Scores of linear models and small networks, compiled by Numba (`fedkin[fast]`): for measurements after every round.

A BLAS library copies the samples into its own layout before it multiplies them by the few rows of such a layer. Here
they are read once, where they are.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedkin.compiler.compilation import compiled
from fedkin.compiler.vectors import NUMBER
from fedkin.engine.spaces.primal import network_of
from fedkin.engine.spaces.primal_kernels import STRIP, network_scores, workspace
from fedkin.engine.spaces.primal_loops import SAMPLES
from fedkin.models import MLP, Linear


@compiled("(float32[:, ::1], int64, int64, int64, int64, int64, float32[:, :, ::1])")
def _scores(w, x, row, samples, features, hidden, out):  # type: ignore[no-untyped-def]
    """Scores (L, K, n) under models (L, P) of samples at the address x, which begin every `row` bytes.

    A block of samples stays in a core's cache for all models.
    """
    outputs = out.shape[1]
    block, z, top, _, _, lines = workspace(features, hidden, outputs, np.array([0, samples]))
    starts, edge = np.empty(block + SAMPLES, dtype=np.int64), np.empty((len(z), STRIP), dtype=np.float32)
    for first in range(0, samples, block):
        many = min(block, samples - first)
        for i in range(len(starts)):
            starts[i] = x + min(first + i, samples - 1) * row
        for lane in range(len(w)):
            network_scores(w[lane], features, hidden, starts, many, z, top, edge, lines)
            out[lane, :, first : first + many] = (top if hidden > 0 else z)[:, :many]


@dataclass(frozen=True)
class CompiledScores:
    """`model.scores` of a linear model or a network with one hidden layer."""

    model: Linear | MLP

    def __call__(self, w: Tensor, x: Tensor) -> Tensor:
        """Scores of samples x (n, D) under models w (L, P): (L, K, n)."""
        if x.dtype != torch.float32 or w.dtype != torch.float32:
            raise ValueError(f"float32 numbers are needed, not {x.dtype} and {w.dtype}")
        x = x if x.stride(1) == 1 else x.contiguous()
        network, samples = network_of(self.model), len(x)
        out = torch.empty(len(w), network.outputs, samples)
        place = (x.data_ptr(), x.stride(0) * NUMBER)
        _scores(w.contiguous().numpy(), *place, samples, network.features, network.hidden, out.numpy())
        return out
