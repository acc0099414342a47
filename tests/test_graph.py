"""Messages and the similarity graph."""

import sys
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import small_federation
from fedkin.algorithms import FedKin
from fedkin.engine.simulation import Simulation
from fedkin.errors import BadInput
from fedkin.graph.mixing import mixed
from fedkin.graph.similarity import SimilarityGraph, build_graph, message, messages
from fedkin.models import Softmax
from fedkin.types import Floats


def directions(clients: int, features: int, seed: int, spread: float = 1.0) -> Floats:
    m = np.ones(features) + spread * np.random.default_rng(seed).standard_normal((clients, features))
    return np.asarray(m / np.linalg.norm(m, axis=1, keepdims=True))


# --- messages ---


def test_message_by_hand() -> None:
    """The rows (2, 2), (1, −1) have xᵀx = ((5, 3), (3, 5)) with eigenvalues 8 and 2: m = (1, 1)/√2."""
    np.testing.assert_allclose(message([[2.0, 2.0], [1.0, -1.0]]), np.array([1, 1]) / np.sqrt(2))


def test_message_is_uncentred_and_points_to_the_mean() -> None:
    """The data vary along the second axis but lie far out along the first, on its negative side."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.full(50, -10.0), rng.standard_normal(50)])
    m = message(x)
    assert m[0] < -0.99


def test_sign_of_centred_data_is_chosen_by_the_largest_entry() -> None:
    m = message([[1.0, -3.0], [-1.0, 3.0]])
    np.testing.assert_allclose(m, np.array([-1, 3]) / np.sqrt(10))


@pytest.mark.parametrize("shape", [(1, 6), (5, 9), (9, 5), (90, 300), (300, 90), (100, 100)])
def test_message_is_the_top_singular_vector(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(1).uniform(0, 1, shape)
    m = message(x.astype(np.float32))
    top = np.linalg.svd(x.astype(np.float32).astype(np.float64))[2][0]
    np.testing.assert_allclose(np.abs(m), np.abs(top), atol=1e-9)
    assert np.linalg.norm(m) == pytest.approx(1)
    assert m @ x.mean(axis=0) > 0
    np.testing.assert_array_equal(m, message(x.astype(np.float32)))


def test_message_with_top_eigenvalues_that_are_equal() -> None:
    x = np.eye(80)
    m = message(x)
    assert np.linalg.norm(m) == pytest.approx(1)
    np.testing.assert_array_equal(m, message(x))


def test_messages_of_raw_and_preprocessed_features_differ() -> None:
    federation = small_federation()
    object.__setattr__(federation, "shift", federation.shift + 0.5)
    raw, preprocessed = messages(federation, "raw"), messages(federation, "preprocessed")
    np.testing.assert_allclose(raw[2], message(federation.raw(2).numpy()))
    np.testing.assert_allclose(preprocessed[2], message(federation.train.x[federation.train.rows(2)].numpy()))
    assert np.abs(raw - preprocessed).max() > 1e-3


def test_a_client_of_zeros_has_no_message() -> None:
    federation = small_federation()
    federation.train.x[federation.train.rows(3)] = 0
    with pytest.raises(BadInput, match="training client 3: a client whose samples are all zero"):
        messages(federation)


# --- the graph ---


def test_graph_by_hand() -> None:
    """m₀ = (1, 0), m₁ = (0, 1), m₂ = (−1, 0): mis₀₁ = ½, mis₁₂ = ½, mis₀₂ = 1, so A₀₁ = A₁₂ = ln 2, A₀₂ = 0.

    Σ A = 4 ln 2: p₀₁ = ¼, p₀ = p₂ = ¼, p₁ = ½; client 1 averages 0 and 2 evenly, they take all of 1.
    The Laplacian is ln 2 · ((1, −1, 0), (−1, 2, −1), (0, −1, 1)), with eigenvalues 0, ln 2, 3 ln 2.
    """
    graph = SimilarityGraph.from_messages([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    assert graph.misalignment is not None
    np.testing.assert_allclose(graph.misalignment, [[0, 0.5, 1.0], [0.5, 0, 0.5], [1.0, 0.5, 0]])
    np.testing.assert_allclose(graph.pair_weights, [[0, 0.25, 0], [0.25, 0, 0.25], [0, 0.25, 0]])
    np.testing.assert_allclose(graph.degrees, [0.25, 0.5, 0.25])
    np.testing.assert_allclose(graph.mixing, [[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])
    np.testing.assert_allclose(graph.spectrum, np.log(2) * np.array([0, 1, 3]), atol=1e-12)


def test_small_misalignments_keep_their_digits() -> None:
    """Two unit vectors at an angle of 1e-6: mis = (1 − cos 1e-6)/2 = sin²(5e-7) = 2.5e-13, below float32's reach."""
    angle = 1e-6
    graph = SimilarityGraph.from_messages([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
    assert graph.misalignment is not None
    assert graph.misalignment[0, 1] == pytest.approx(np.sin(angle / 2) ** 2, rel=1e-6)


def test_a_client_whose_weights_are_all_zero_takes_the_global_model() -> None:
    """Client 2 is opposite to both others, who are one beside the other."""
    graph = SimilarityGraph.from_messages([[1.0, 0.0], [np.cos(0.1), np.sin(0.1)], [-1.0, 0.0]], floor=0.0)
    assert graph.adjacency[0, 2] == 0
    lonely = SimilarityGraph(np.array([[0.0, 1, 0], [1, 0, 0], [0, 0, 0]]))
    assert lonely.mixing[2].tolist() == [0, 0, 0]
    assert lonely.degrees.tolist() == [0.5, 0.5, 0]


def test_identical_clients() -> None:
    same = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    with pytest.raises(BadInput, match=r"clients 0 and 2 hold the same data.*graph\.floor"):
        SimilarityGraph.from_messages(same)
    graph = SimilarityGraph.from_messages(same, floor=1e-6)
    assert graph.adjacency[0, 2] == pytest.approx(-np.log(1e-6))
    assert np.isfinite(graph.mixing).all()


def test_all_opposite() -> None:
    with pytest.raises(BadInput, match="no client has kin"):
        SimilarityGraph.from_messages([[1.0, 0.0], [-1.0, 0.0]])


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 12), st.integers(2, 6), st.integers(0, 1000), st.sampled_from([1e-4, 0.1, 3.0]))
def test_graph_properties(clients: int, features: int, seed: int, spread: float) -> None:
    m = directions(clients, features, seed, spread)
    graph = SimilarityGraph.from_messages(m)
    a = graph.adjacency
    assert np.array_equal(a, a.T)
    assert (np.diag(a) == 0).all()
    assert (a >= 0).all()
    assert np.isfinite(a).all()
    assert graph.degrees.sum() == pytest.approx(1)
    assert graph.pair_weights.sum() == pytest.approx(1)
    rows = graph.mixing.sum(axis=1)
    assert np.allclose(rows[a.sum(axis=1) > 0], 1)
    np.testing.assert_allclose(graph.degrees[:, None] * graph.mixing, graph.pair_weights, atol=1e-15)
    assert graph.spectrum[0] == pytest.approx(0, abs=1e-9 * a.sum())
    assert (np.diff(graph.spectrum) >= -1e-9).all()
    order = np.random.default_rng(seed).permutation(clients)
    again = SimilarityGraph.from_messages(m[order])
    np.testing.assert_allclose(again.adjacency, a[np.ix_(order, order)])
    np.testing.assert_allclose(again.degrees, graph.degrees[order])


def test_mixing_rows_are_the_ones_asked_for() -> None:
    graph = SimilarityGraph.from_messages(directions(5, 3, 0))
    rows = graph.mixing_rows(np.array([4, 1]), np.array([0, 2, 3]))
    np.testing.assert_array_equal(rows, graph.mixing[[4, 1]][:, [0, 2, 3]])


# --- nearest neighbours ---


def dense_nearest(m: Floats, k: int) -> Floats:
    """The obvious way: of all pairs, those that one end counts among its k nearest."""
    full = SimilarityGraph.from_messages(m)
    assert full.misalignment is not None
    mis = full.misalignment + np.diag(np.full(len(m), np.inf))
    keep = np.zeros((len(m), len(m)), dtype=bool)
    for i, row in enumerate(mis):
        keep[i, np.argsort(row, kind="stable")[:k]] = True
    return np.where(keep | keep.T, full.adjacency, 0.0)


@pytest.mark.parametrize("k", [1, 3, 11, 50])
@pytest.mark.parametrize("spread", [1e-3, 1.0])
def test_nearest_is_the_full_graph_cut(k: int, spread: float) -> None:
    m = directions(12 if k < 50 else 600, 5, 2, spread)
    graph = SimilarityGraph.nearest(m, k)
    expected = dense_nearest(m, k)
    np.testing.assert_allclose(graph.adjacency.toarray(), expected, rtol=1e-9)
    cut = SimilarityGraph(expected)
    np.testing.assert_allclose(graph.degrees, cut.degrees)
    np.testing.assert_allclose(graph.mixing.toarray(), cut.mixing)
    np.testing.assert_allclose(graph.spectrum, cut.spectrum, atol=1e-8)
    who, owners = np.array([7, 2]), np.array([0, 1, 5, 9, 11])
    np.testing.assert_allclose(graph.mixing_rows(who, owners).toarray(), cut.mixing_rows(who, owners))


@pytest.mark.parametrize("lanes", [(), (2,)], ids=["one run", "lanes"])
@pytest.mark.parametrize(("who", "owners"), [([3, 7, 2], [0, 1, 5, 9, 11]), ([4], []), (range(12), range(12))])
def test_sparse_mixing_is_a_product_with_the_dense_rows(
    lanes: tuple[int, ...], who: Sequence[int], owners: Sequence[int]
) -> None:
    """Also without any models, and for a client none of whose neighbours is among the owners."""
    graph = SimilarityGraph.nearest(directions(12, 5, 2), 3)
    rows = graph.mixing_rows(np.array(who), np.array(owners, dtype=np.int64))
    models = torch.rand(*lanes, len(owners), 4, generator=torch.Generator().manual_seed(0))
    sparse, dense = mixed(rows, models), mixed(rows.toarray(), models)
    assert sparse.shape == (*lanes, len(who), 4)
    torch.testing.assert_close(sparse, dense)


def test_all_neighbours_are_the_full_graph() -> None:
    m = directions(9, 4, 3)
    graph = SimilarityGraph.nearest(m, 8)
    np.testing.assert_allclose(graph.adjacency.toarray(), SimilarityGraph.from_messages(m).adjacency)
    with pytest.raises(BadInput, match="hold the same data"):
        SimilarityGraph.nearest(np.vstack([m, m[:1]]), 3)


def test_a_sparse_graph_trains_like_the_same_dense_graph() -> None:
    federation = small_federation(sizes=(4,) * 9)
    sparse = build_graph(federation, neighbours=2)
    dense = SimilarityGraph(sparse.adjacency.toarray())
    states = []
    for graph in (sparse, dense):
        run = Simulation(federation, Softmax(5, 3), FedKin(absent="last"), graph, graph.degrees, take_part=4)
        state = run.start()
        for _ in range(4):
            state = run.advance(state)
        states.append(state.model)
    torch.testing.assert_close(*states)


def test_too_many_clients_for_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkin.graph.similarity.MANY", 5)
    with pytest.raises(BadInput, match=r"set graph\.neighbours"):
        SimilarityGraph.from_messages(directions(6, 3, 0))
    with pytest.raises(BadInput, match="use 'global'"):
        SimilarityGraph.uniform(6)
    assert len(SimilarityGraph.nearest(directions(6, 3, 0), 2)) == 6


def test_graphs_for_comparison() -> None:
    federation = small_federation()
    true, shuffled = build_graph(federation), build_graph(federation, "shuffled", seed=1)
    assert not np.allclose(true.adjacency, shuffled.adjacency)
    np.testing.assert_allclose(np.sort(true.degrees), np.sort(shuffled.degrees))
    np.testing.assert_array_equal(shuffled.adjacency, build_graph(federation, "shuffled", seed=1).adjacency)
    uniform = build_graph(federation, "uniform")
    assert uniform.mixing[0].tolist() == [0, 0.25, 0.25, 0.25, 0.25]
    edgeless = build_graph(federation, "global")
    assert not edgeless.has_edges
    assert edgeless.degrees.tolist() == [0.2] * 5
    with pytest.raises(BadInput, match="unknown graph 'ring'"):
        build_graph(federation, "ring")


def test_weights() -> None:
    graph = SimilarityGraph.from_messages(directions(3, 4, 1))
    sizes = np.array([1, 2, 5])
    np.testing.assert_array_equal(graph.weights("adjacency", sizes), graph.degrees)
    assert graph.weights("uniform", sizes).tolist() == [1 / 3] * 3
    assert graph.weights("samples", sizes).tolist() == [0.125, 0.25, 0.625]
    with pytest.raises(BadInput, match="unknown weights 'size'"):
        graph.weights("size", sizes)


def test_an_approximate_search_finds_nearly_all_and_weighs_them_exactly() -> None:
    rng = np.random.default_rng(0)
    m = rng.uniform(0, 1, (600, 12))
    m /= np.linalg.norm(m, axis=1, keepdims=True)
    exact = SimilarityGraph.nearest(m, 8).adjacency
    near = SimilarityGraph.nearest(m, 8, search="approximate").adjacency
    both = exact.multiply(near > 0)
    assert both.count_nonzero() > 0.98 * exact.count_nonzero()
    assert abs(both - near.multiply(exact > 0)).max() == 0  # the same edges weigh the same
    assert near.diagonal().sum() == 0


def test_an_approximate_search_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(BadInput, match=r"fedkin\[neighbours\]"):
        SimilarityGraph.nearest(np.eye(5) + 0.1, 2, search="approximate")


def test_an_approximate_search_among_few() -> None:
    rng = np.random.default_rng(1)
    m = rng.uniform(0, 1, (6, 3))
    m /= np.linalg.norm(m, axis=1, keepdims=True)
    exact, near = (SimilarityGraph.nearest(m, 2, search=s).adjacency.toarray() for s in ("exact", "approximate"))
    np.testing.assert_array_equal(exact, near)


@pytest.mark.parametrize("neighbours", [0, 2])
def test_a_temperature_that_leaves_clients_without_neighbours_is_an_error(neighbours: int) -> None:
    """Edges of 1 and 2 at temperature 1e-4: 2^−10000 is 0, and so would be a sum that weights are divided by."""
    messages = np.eye(4) + 0.1 * np.random.default_rng(0).standard_normal((4, 4))
    messages /= np.linalg.norm(messages, axis=1, keepdims=True)
    graph = SimilarityGraph.nearest(messages, neighbours) if neighbours else SimilarityGraph.from_messages(messages)
    with pytest.raises(BadInput, match=r"temperature = 0.0001 leaves . of 4 clients without neighbours.*raise it"):
        graph.tempered(1e-4)
    assert np.isfinite(graph.tempered(0.05).strengths).all()
