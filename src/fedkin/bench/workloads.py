"""Workloads of the benchmark, with synthetic data of the shape of real data sets.

A workload is a federation, a model and the local work: all competitors run FedAvg with the same step size, penalty and
weights. `arithmetic` counts the operations of a round in parameter space.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedkin.algorithms import Algorithm, FedAvg
from fedkin.algorithms.local import Local
from fedkin.data.federation import Clients, Federation, from_rows
from fedkin.data.partition import split, split_like
from fedkin.engine.simulation import Simulation
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import MLP, Model, Module, Softmax
from fedkin.types import Integers

CLASSES = 10
STEP_SIZE = 1e-3  # stable for 3,072 features between −1 and 1
SEED = 1


def softmax_net() -> nn.Module:
    """Softmax regression; the number of features is determined by the first batch."""
    return nn.LazyLinear(CLASSES)


def hidden_net() -> nn.Module:
    """One hidden layer of 128 rectified linear units."""
    return nn.Sequential(nn.LazyLinear(128), nn.ReLU(), nn.Linear(128, CLASSES))


def dense_net() -> nn.Module:
    """The same for 784 features, as a user would write it."""
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def convolutional_net() -> nn.Module:
    """Two convolutions with pooling and a linear layer, for images 1×28×28."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, CLASSES),
    )


def normalised_net() -> nn.Module:
    """Two convolutions with GroupNorm and pooling, and a linear layer, for images 1×28×28."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, CLASSES),
    )


@dataclass(frozen=True)
class Workload:
    """A round of FedAvg to be computed.

    clients, samples  number of clients, and of samples per client (on average, if sizes differ)
    shape             of one sample
    net               the model as a PyTorch module, with parameters in the order of the engine's model
    model             the same model for the engine
    formula           of the operations of a round, for the table
    quick_clients     number of clients in the reduced form
    seconds           estimated duration of a round of all competitors at 150 · 10⁹ operations per second
    class_imbalance   a of the partition, in the classes of the clients
    size_imbalance    b of the partition, in the clients' numbers of samples
    order, clip       of the samples, and G (None: no clipping)
    take_part         M, number of clients sampled per round (None: all)
    testing           number of testing samples, divided like the others (0: the samples of the first client)
    sweep             whether a sweep is measured as well
    epochs            E, of local training
    """

    name: str
    clients: int
    samples: int
    shape: tuple[int, ...]
    net: Callable[[], nn.Module]
    model: Callable[["Workload"], Model]
    formula: str
    quick_clients: int
    seconds: float
    batch_size: int = 256
    class_imbalance: float = 0.0
    size_imbalance: float = 0.0
    order: str = "fixed"
    clip: float | None = None
    take_part: int | None = None
    testing: int = 0
    sweep: bool = True
    epochs: int = 10

    @property
    def features(self) -> int:
        """D, the number of features."""
        return int(np.prod(self.shape))

    @property
    def local(self) -> Local:
        """What clients do in a round.

        The penalty is so large that the model of a competitor without it would differ visibly after one round.
        """
        return Local(epochs=self.epochs, batch_size=self.batch_size, order=self.order, l2=1e-2, clip=self.clip)

    def quick(self) -> "Workload":
        """The same with few clients."""
        return replace(self, clients=self.quick_clients)

    def federation(self) -> Federation:
        """The synthetic clients. Classes have different means, so that they can be learnt."""
        rng = np.random.default_rng(SEED)
        labels = np.arange(self.clients * self.samples) % CLASSES
        a, b = self.class_imbalance, self.size_imbalance
        parts = split(labels, self.clients, class_imbalance=a, size_imbalance=b, scheme="paper", rng=rng)
        generator = torch.Generator().manual_seed(SEED)

        def noise(labels: Integers, parts: list[Integers]) -> Clients:
            y = torch.as_tensor(labels[np.concatenate(parts)])
            x = torch.empty(len(y), self.features).uniform_(-0.5, 0.5, generator=generator)
            return from_rows(x, y, np.array([len(part) for part in parts]))

        drawn = [noise(labels, parts)]
        centres = torch.empty(CLASSES, self.features).uniform_(-0.5, 0.5, generator=generator)
        if self.testing:
            counts = np.stack([np.bincount(labels[part], minlength=CLASSES) for part in parts])
            others = np.arange(self.testing) % CLASSES
            drawn.append(noise(others, split_like(counts, others, rng)))
        for clients in drawn:
            for k in range(CLASSES):  # the centres of all samples at once would take as much memory as x
                clients.x[clients.y == k] += centres[k]
        return synthetic_federation(drawn[0], CLASSES, self.shape, self.name, *drawn[1:])

    def simulation(
        self, federation: Federation, algorithm: Algorithm | None = None, graph: SimilarityGraph | None = None
    ) -> Simulation:
        """The workload for the engine, with FedAvg by default."""
        clients = len(federation.train)
        graph = graph or SimilarityGraph.edgeless(clients)
        return Simulation(
            federation=federation,
            model=self.model(self),
            algorithm=algorithm or FedAvg(step_size=STEP_SIZE),
            graph=graph,
            weights=graph.weights("samples", federation.train.sizes),
            local=self.local,
            take_part=self.take_part,
            seed=SEED,
        )

    def arithmetic(self) -> float:
        """Floating-point operations of all matrix products and convolutions of a round in parameter space.

        A layer with |W| weights, applied at o positions of a sample, takes 2·|W|·o operations per sample forward, the
        same number for the gradient of its weights, and again for the gradient of its input, which the first layer
        does not need. That times E·N samples. Biases, activations and averaging are not counted.
        """
        forward = layer_operations(self.net(), self.shape)
        each = 2 * forward[0] + 3 * sum(forward[1:])
        return float(self.local.epochs * self.clients * self.samples * each)


def layer_operations(net: nn.Module, shape: tuple[int, ...]) -> list[int]:
    """Operations of every layer with weights, forward, for one sample: 2·|W|·o."""
    counts: list[int] = []

    def count(layer: nn.Module, _: tuple[Tensor, ...], out: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        counts.append(2 * weight.numel() * (out.numel() // len(weight)))

    net(torch.zeros(1, *shape))  # initialises the lazy layers
    for layer in net.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.register_forward_hook(count)
    net(torch.zeros(1, *shape))
    return counts


def synthetic_federation(
    train: Clients, classes: int, shape: tuple[int, ...], name: str, test: Clients | None = None
) -> Federation:
    """A federation of synthetic clients. A benchmark that does not test has the first one as the testing client."""
    if test is None:
        first = train.rows(0)
        test = from_rows(train.x[first], train.y[first], train.sizes[:1])
    ones = torch.ones(train.x.shape[1])
    return Federation(train, test, classes, shape, shift=0 * ones, scale=ones, name=name)


def _softmax_model(workload: Workload) -> Model:
    return Softmax(workload.features, CLASSES)


def _mlp_model(workload: Workload) -> Model:
    return MLP(workload.features, CLASSES, hidden=128)


def module_model(workload: Workload) -> Model:
    """The workload's net as it is, for the engine."""
    return Module(workload.net, workload.shape, CLASSES)


LINEAR = "4·E·N·D·K"
WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("mnist-softmax", 100, 600, (784,), softmax_net, _softmax_model, LINEAR, quick_clients=4, seconds=7),
        Workload("cifar-softmax", 100, 500, (3072,), softmax_net, _softmax_model, LINEAR, quick_clients=3, seconds=9),
        Workload(
            "cifar-imbalanced",
            100,
            500,
            (3072,),
            softmax_net,
            _softmax_model,
            LINEAR,
            quick_clients=5,
            seconds=13,
            size_imbalance=1.0,
        ),
        Workload(
            "mnist-mlp",
            100,
            600,
            (784,),
            hidden_net,
            _mlp_model,
            "E·N·(4·D·H + 6·H·K)",
            quick_clients=3,
            seconds=27,
        ),
        Workload(
            "many-tiny",
            3000,
            20,
            (784,),
            softmax_net,
            _softmax_model,
            LINEAR,
            quick_clients=40,
            seconds=25,
            batch_size=20,
        ),
        Workload(
            "module",
            50,
            200,
            (1, 28, 28),
            convolutional_net,
            module_model,
            "E·N·(4·|W₁|·o₁ + 6·Σ |Wₗ|·oₗ)",
            quick_clients=2,
            seconds=20,
            sweep=False,
        ),
        Workload(
            "groupnorm",
            5,
            100,
            (1, 28, 28),
            normalised_net,
            module_model,
            "E·N·(4·|W₁|·o₁ + 6·Σ |Wₗ|·oₗ)",
            quick_clients=2,
            seconds=15,
            batch_size=32,
            sweep=False,
        ),
    )
}
