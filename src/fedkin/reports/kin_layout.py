"""Where the clients are drawn: a layout of a graph in which clients with many common kin are close to each other.

Each component starts from its spectral coordinates. Then forces move the clients: edges attract in proportion to their
length, all clients repel each other in inverse proportion to their distance, and a weak force to the centre holds the
components together. There are no random starts, so the same graph always has the same picture.
"""

import numpy as np
from scipy.linalg import eigh
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackError, eigsh

from fedkin.types import Floats, Integers

# The force to the centre, relative to the attraction of a client's edges together. With a weaker one the distances
# between components leave no room for their shapes; a stronger one folds a ring.
GRAVITY = 0.25
# With fewer clients a dense eigenproblem is faster than an iterative one.
_DENSE = 500
# Repulsion is computed from so many others; with more clients they are a sample, which changes from step to step.
SAMPLED = 800


def positions(pairs: csr_array) -> Floats:
    """Coordinates (C, 2) of the nodes of a symmetric graph with positive weights; the largest distance from 0 is 1."""
    clients = pairs.shape[0]
    links = pairs.copy()
    links.setdiag(0)
    links.eliminate_zeros()
    strength = np.asarray(links.sum(axis=1)).reshape(-1)
    if clients < 2 or not strength.any():
        return sunflower(clients)
    links /= strength.mean()
    x = _moved(links, _first(links))
    x -= x.mean(axis=0)
    return np.asarray(x / np.linalg.norm(x, axis=1).max())


def sunflower(count: int) -> Floats:
    """Points (count, 2) evenly spread over the unit disc, the first in the centre."""
    i = np.arange(count)
    radius, turn = np.sqrt(i / max(count - 1, 1)), i * np.pi * (3 - np.sqrt(5))
    return np.asarray(np.stack([radius * np.cos(turn), radius * np.sin(turn)], axis=1))


def _first(links: csr_array) -> Floats:
    """Components beside each other, each in its spectral coordinates."""
    count, of = connected_components(links, directed=False)
    sizes = np.bincount(of)
    x, centres = np.zeros((links.shape[0], 2)), sunflower(count) * 2
    for place, component in enumerate(np.argsort(-sizes, kind="stable")):
        members = np.flatnonzero(of == component)
        own = _spectral(links[members][:, members])
        x[members] = centres[place] + own * np.sqrt(len(members) / links.shape[0])
    return x


def _spectral(links: csr_array) -> Floats:
    """The second and third eigenvector of the normalised Laplacian of a connected graph, scaled to the unit disc."""
    clients = links.shape[0]
    if clients < 4:
        return sunflower(clients)
    root = 1 / np.sqrt(np.asarray(links.sum(axis=1)).reshape(-1))
    normal = diags_array(root) @ links @ diags_array(root)
    try:
        if clients <= _DENSE:
            _, vectors = eigh(normal.toarray(), subset_by_index=[clients - 3, clients - 1])
        else:
            _, vectors = eigsh(
                normal, k=3, which="LA", v0=np.cos(np.arange(clients)), tol=1e-6, rng=np.random.default_rng(0)
            )
    except ArpackError:
        return sunflower(clients)
    x = vectors[:, [1, 0]] * root[:, None]
    x *= np.sign(x[np.argmax(abs(x), axis=0), [0, 1]])  # the sign of an eigenvector is arbitrary
    # Clients in the same place would never part: those with the same kin start a little apart.
    return np.asarray(x / abs(x).max() + 0.02 * sunflower(clients))


def _moved(links: csr_array, x: Floats) -> Floats:
    """The nodes moved by the forces, in steps that become shorter."""
    clients, steps = len(x), int(np.clip(200_000 // len(x), 80, 300))
    rng, strength = np.random.default_rng(0), np.asarray(links.sum(axis=1)).reshape(-1, 1)
    for reach in np.geomspace(0.3, 0.003, steps):
        others = np.arange(clients) if clients <= SAMPLED else rng.choice(clients, SAMPLED, replace=False)
        force = links @ x - strength * x - GRAVITY * x + _repulsion(x, others)
        length = np.linalg.norm(force, axis=1, keepdims=True)
        x = x + force * np.minimum(0.2, reach / np.maximum(length, 1e-12))
    return x


def _repulsion(x: Floats, others: Integers) -> Floats:
    """The mean of (x − y)/|x − y|² over other nodes y, for each node x: (C, 2)."""
    y = x[others]
    squares = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1) - 2 * x @ y.T
    nearness = 1 / np.maximum(squares, 1e-4)
    return np.asarray((x * nearness.sum(axis=1, keepdims=True) - nearness @ y) / len(y))
