"""What server, nodes and the in-process engine share: the model, the local work, and the data of a node."""

import numpy as np

from fedkin import FedKin, Local, Softmax

SAMPLES = 60  # of a node
MODEL = Softmax(features=784, outputs=10)
ALGORITHM, LOCAL = FedKin(step_size=0.05, beta=0.5), Local(epochs=5, batch_size=32)


def drawn(node: int):
    """Ten classes of 784 features, each around a centre that is the same at all nodes."""
    centres = np.random.default_rng(0).random((10, 784), dtype=np.float32)
    own = np.random.default_rng([1, node])
    y = own.integers(0, 10, SAMPLES)
    return (centres[y] + own.random((SAMPLES, 784), dtype=np.float32)) / 2, y
