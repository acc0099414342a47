"""The compiled parts of a round on parameters: products with samples in any order, residuals, gradients."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedkin.models import MLP, CrossEntropy, Linear, Logistic, Loss, Squared

pytest.importorskip("numba")

from fedkin.compiler.vectors import LANE, WIDE
from fedkin.engine.spaces import primal_kernels as kernels
from fedkin.engine.spaces import program_kernels
from fedkin.engine.spaces.primal import network_of
from fedkin.engine.spaces.primal_loops import CACHE_LINE, SAMPLES, TALL, TALLEST


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# -- products ----------------------------------------------------------------------------------------------------------


def addresses_of(rows: Tensor) -> Any:
    return np.array([row.data_ptr() for row in rows])


@pytest.mark.parametrize("height", range(1, 2 * TALL + 2))
def test_scores(height: int) -> None:
    """Tiles of all heights with columns in any order; the last vector of three is left out."""
    length, many = 3 * WIDE, 2 * SAMPLES
    rows, columns, out = drawn(height, length), drawn(many + 2, length, seed=1), drawn(height, many + 2, seed=2)
    order = np.random.default_rng(3).permutation(many + 2)[:many]
    expected = out.clone()
    expected[:, :many] += rows[:, : 2 * WIDE] @ columns[order, WIDE:].mT
    starts = addresses_of(columns)[order]
    where = (starts.ctypes.data, many, WIDE * 4, 2, out.data_ptr(), (many + 2) * 4)
    kernels.add_scores(rows.data_ptr(), length * 4, height, *where)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("height", range(1, 2 * TALLEST + 2))
@pytest.mark.parametrize("turned", [False, True])
def test_sums(height: int, turned: bool) -> None:
    """Tiles of all heights with two strips of columns; the factors may be stored by columns."""
    columns = 2 * kernels.STRIP
    factors, lines, out = drawn(height, 5), drawn(9, columns + 16, seed=1), drawn(height, columns, seed=2)
    order = [8, 2, 2, 0, 7]
    expected = out + factors @ lines[order, 16:]
    stored = factors.mT.contiguous() if turned else factors
    row, step = (4, 4 * height) if turned else (5 * 4, 4)
    starts = addresses_of(lines)[order]
    where = (starts.ctypes.data, starts.ctypes.data, 16 * 4, 5, 2)
    kernels.add_sums(stored.data_ptr(), row, step, height, *where, out.data_ptr(), columns * 4)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_rows_begin_with_a_cache_line(rows: int) -> None:
    made = kernels.zeros(rows, 32)
    assert made.shape == (rows, 32)
    assert not made.any()
    assert all(row.ctypes.data % CACHE_LINE == 0 for row in made)


@pytest.mark.parametrize("terms", [[], [0], [1], [0, 2], [3, 1, 0, 2]])
def test_combinations(terms: list[int]) -> None:
    """Of more numbers than a piece, which is no multiple of a SIMD vector; a factor of 0 hides a NaN."""
    size = program_kernels.PIECE + 13
    given, out = drawn(4, size), torch.full((size + 1,), 7.0)
    by = np.zeros(4, dtype=np.float32)
    by[terms] = 1 + np.arange(len(terms))
    if hidden := {0, 1, 2, 3} - set(terms) - {0}:
        given[list(hidden)] = float("nan")
    program_kernels.combine(addresses_of(given), by, out.data_ptr(), size, np.empty(2, np.float32))
    expected = sum((float(by[i]) * given[i] for i in terms), torch.zeros(size))
    torch.testing.assert_close(out[:size], expected)
    assert out[size] == 7


def residual(z: Tensor, labels: Tensor, loss: int, weight: float = 1.0) -> Tensor:
    """Of scores (K, n), computed in a wider array; the remainder has to be zero."""
    wide = torch.full((len(z), z.shape[1] + 11), 7.0)
    wide[:, : z.shape[1]] = z
    kernels.residuals(wide.numpy(), labels.float().numpy(), z.shape[1], weight, loss)
    assert (wide[:, z.shape[1] :] == 0).all()
    return wide[:, : z.shape[1]]


def test_residuals_by_hand() -> None:
    """Scores ln 1 … ln 4 have probabilities of tenths; the log-odds ln 3 are a probability of 3/4."""
    z = torch.tensor([1.0, 2.0, 3.0, 4.0]).log()[:, None].expand(4, 5)
    labels = torch.tensor([0, 1, 2, 3, 3])
    expected = torch.tensor([0.1, 0.2, 0.3, 0.4])[:, None] - torch.eye(4)[:, labels]
    torch.testing.assert_close(residual(z, labels, kernels.SOFTMAX, 2.0), 2 * expected)
    odds = torch.tensor([[3.0, 3.0, 1.0]]).log()
    found = residual(odds, torch.tensor([0, 1, 1]), kernels.LOGISTIC, 2.0)
    torch.testing.assert_close(found, torch.tensor([[1.5, -0.5, -1.0]]))
    found = residual(torch.tensor([[1.0, 2.0]]), torch.tensor([0.5, 4.0]), kernels.SQUARED, 2.0)
    assert found.tolist() == [[1.0, -4.0]]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_residuals_of_any_scores(scale: float) -> None:
    z, labels = scale * drawn(5, 203), torch.arange(203) % 5
    expected = torch.softmax(z.double(), 0) - torch.eye(5)[:, labels]
    torch.testing.assert_close(residual(z, labels, kernels.SOFTMAX).double(), expected, rtol=1e-5, atol=3e-7)


def test_nan_is_kept_and_does_not_spread() -> None:
    z = drawn(4, 40)
    z[1, 3], z[2, 17], z[0, 20] = float("nan"), float("inf"), float("nan")
    r = residual(z, torch.zeros(40), kernels.SOFTMAX)
    assert r[:, [3, 17, 20]].isnan().all()
    assert r[:, np.delete(np.arange(40), [3, 17, 20])].isfinite().all()


# -- a gradient --------------------------------------------------------------------------------------------------------

LOSSES: list[tuple[Loss, int]] = [(CrossEntropy(), 5), (CrossEntropy(), 2), (Logistic(), 1), (Squared(), 1)]


def stepped(model: Any, x: Tensor, y: Tensor, w: Tensor, batches: list[list[int]]) -> Tensor:
    """Steps w ← w − ∇f(w), one for each batch, as one compiled round."""
    steps, one = len(batches), np.ones
    f = np.float32
    received, out = np.array([[w.data_ptr()]]), torch.empty_like(w)
    ends = np.cumsum([0, *map(len, batches)])
    samples = kernels.in_order(x.numpy(), y.float().numpy(), np.concatenate(batches), ends)
    recipe = (one((1, 1, 1), f), one((steps, 1, 1), f), one((steps, 1), f), one((steps, 1), f), -one((steps, 1), f))
    after = (one((steps, 1, 1), f), one((steps, 1), f), np.zeros(1, f), np.empty(0, f))
    place = np.array([out.data_ptr()])
    kernels._primal_round(received, place, *recipe, *after, *samples[1:], *network_of(model))
    return out


@pytest.mark.parametrize("features", [32, 33, 48, 71, 784])
@pytest.mark.parametrize(("loss", "outputs"), LOSSES, ids=str)
@pytest.mark.parametrize("hidden", [0, 3, 8, 13])
def test_gradients(features: int, loss: Loss, outputs: int, hidden: int) -> None:
    """Of batches that fill their blocks and of batches that do not, in two steps."""
    model: Any = MLP(features, outputs, hidden, loss) if hidden else Linear(features, outputs, loss)
    x, w = drawn(90, features) / features**0.5, model.start(0)
    y = torch.arange(90) % max(outputs, 2)
    rng = np.random.default_rng(0)
    for width in (1, 2, 32, 33, 70):
        batches = [rng.permutation(90)[:width].tolist() for _ in range(2)]
        found, expected = stepped(model, x, y, w, batches), w
        for batch in batches:
            one = x.new_full((1, width), 1 / width)
            expected = expected - model.gradient(expected[None], x[None, batch], y[None, batch], one)[0]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6)


# -- processors --------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.skipif(WIDE == LANE, reason="this processor has no wide vectors: the tests above are of narrow ones")
def test_processors_without_wide_vectors(tmp_path: Path) -> None:
    """The tests above in a process that compiles for such a processor."""
    narrow = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", __file__, "-p", "no:cacheprovider"]
    ended = subprocess.run(command, env={**os.environ, **narrow}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
    assert "passed" in ended.stdout
