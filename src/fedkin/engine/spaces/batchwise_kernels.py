"""A client's round by batches (`fedkin.engine.spaces.batchwise`), compiled by Numba."""

import numpy as np
import torch
from torch import Tensor

from fedkin.compiler.compilation import compiled
from fedkin.compiler.vectors import NUMBER, WIDE
from fedkin.engine.spaces.batchwise import Batchwise
from fedkin.engine.spaces.primal_kernels import (
    STRIP,
    Network,
    OrderedSamples,
    add_scores,
    add_sums,
    layer_gradient,
    layer_scores,
    mix,
    residuals,
    zeros,
)
from fedkin.engine.spaces.primal_loops import SAMPLES, TALL
from fedkin.engine.spaces.program import Program


@compiled("(int64[::1], int64[::1], int64, int64, float32[:, :, ::1])")
def _products(starts, ends, features, most, out):  # type: ignore[no-untyped-def]
    """Compute out = x xᵀ + 1 of every batch; the 1 is for biases. Batches have at most `most` samples."""
    length = (features + WIDE - 1) // WIDE
    x, rows = np.zeros((most, length * WIDE), dtype=np.float32), np.empty(most + SAMPLES - 1, dtype=np.int64)
    pair = np.empty(2, dtype=np.float32)
    for k in range(len(ends) - 1):
        many = ends[k + 1] - ends[k]
        for i in range(len(rows)):
            rows[i] = x.ctypes.data + min(i, many - 1) * x.strides[0]
        for i in range(many):
            sample = starts[ends[k] + i]
            mix(1, sample, 0, sample, rows[i], features, pair)
        product = out[k]
        product[:] = 0
        product[:many, :many] = 1
        for i in range(0, many, TALL):  # on and above the diagonal
            place = product.ctypes.data + (i * product.shape[1] + i) * NUMBER
            left = (x.ctypes.data + i * x.strides[0], x.strides[0], min(TALL, many - i))
            add_scores(*left, rows[i:].ctypes.data, many - i, 0, length, place, product.strides[0])
        for i in range(many):
            for j in range(i):
                product[i, j] = product[j, i]
            product[i, many:] = 0
    x[0, 0] = 0  # it is in use until here


@compiled(
    "(float32[:, ::1], int64, int64[::1], float32[:, :, ::1], float32[:, :, ::1], float32[:, ::1], float32[:, ::1],"
    " float32[:, ::1], float32[:, :, ::1], int64[::1], float32[::1], int64[::1], int64, int64, int64)"
)
def _batchwise_round(  # type: ignore[no-untyped-def]
    own, leader, asked, fit, inner, total, lead, follow, products, starts, labels, ends, features, outputs, loss
):
    """One lane of one client: its vectors, the rows of `own`, take their steps."""
    vectors, gradients = len(own), total.shape[1]
    size, width, strips = (features + 1) * outputs, products.shape[1], products.shape[1] // STRIP
    pair, one = np.empty(2, dtype=np.float32), np.ones(width, dtype=np.float32)
    z = np.zeros((vectors, outputs, width), dtype=np.float32)
    r, moved = (
        np.zeros((gradients, outputs, width), dtype=np.float32),
        np.zeros((gradients, outputs, width), np.float32),
    )
    s, edge = np.zeros((outputs, width), dtype=np.float32), np.empty((outputs, STRIP), dtype=np.float32)
    lines, other = np.empty(width, dtype=np.int64), 1 - leader if vectors > 1 else leader
    for k in range(len(ends) - 1):
        many = ends[k + 1] - ends[k]
        columns, weight = starts[ends[k] :], np.float32(1) / np.float32(many)
        for i in range(many):
            lines[i] = products.ctypes.data + (k * width + i) * width * NUMBER
        for p in range(vectors):
            layer_scores(own[p], features, columns, many, z[p], edge)
        s[:] = 0
        for f in range(asked[k]):
            scores = r[f]
            for o in range(outputs):
                for j in range(width):
                    scores[o, j] = fit[k, f, 0] * z[0, o, j]
                for p in range(1, vectors):
                    for j in range(width):
                        scores[o, j] += fit[k, f, p] * z[p, o, j]
                for e in range(f):
                    if inner[k, f, e] != 0:
                        for j in range(width):
                            scores[o, j] += inner[k, f, e] * moved[e, o, j]
            residuals(scores, labels[ends[k] :], many, weight, loss)
            for o in range(outputs):
                for j in range(width):
                    s[o, j] += total[k, f] * scores[o, j]
            if f < asked[k] - 1:
                moved[f] = 0
                factors = (scores.ctypes.data, scores.strides[0], NUMBER, outputs, lines.ctypes.data, lines.ctypes.data)
                add_sums(*factors, 0, many, strips, moved[f].ctypes.data, moved[f].strides[0])
        first, second = own[leader].ctypes.data, own[other].ctypes.data
        by = lead[k, other] if vectors > 1 else np.float32(0)
        mix(lead[k, leader], first, by, second, first, size, pair)
        following = starts[ends[k + 1] :] if ends[k + 1] + many <= len(starts) else columns
        layer_gradient(s, features, columns, following, many, own[leader], edge, one)
        if vectors > 1:
            mix(follow[k, 0], second, follow[k, 1], first, second, size, pair)


def batchwise_round(
    steps: Batchwise,
    program: Program,
    clients: list[OrderedSamples],
    network: Network,
    received: list[Tensor],
    out: list[Tensor],
) -> None:
    """A round of clients: received vectors (L, c, P) to those that change, (L, c, P), which are written to `out`."""
    numbers = steps[2:]
    room = -(-network.size // (4 * WIDE)) * (4 * WIDE)
    for client, (_, starts, labels, ends) in enumerate(clients):
        most = int(np.diff(ends).max())
        width = -(-most // STRIP) * STRIP
        products = np.empty((len(ends) - 1, width, width), dtype=np.float32)  # the same in all lanes
        _products(starts, ends, network.features, most, products)
        samples = (products, starts, labels, ends, network.features, network.outputs, network.loss)
        for lane in range(len(out[0])):
            own = zeros(len(out), room)
            for row, begin in zip(own, steps.start, strict=True):
                row[: network.size] = received[begin][lane, client].numpy()
            _batchwise_round(own, steps.leader, program.asked, *(array[lane] for array in numbers), *samples)
            for row, value in zip(own, out, strict=True):
                value[lane, client] = torch.from_numpy(row[: network.size])
