"""The works on which the engine is measured: made-up data of the right shape, so that they run anywhere.

Every work is one federation, one model and the same local work for all competitors: FedAvg with the same step size,
penalty and weights. `arithmetic` says how many operations a round needs if it is done plainly.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedkin.algorithms import Algorithm, FedAvg
from fedkin.algorithms.local import Local
from fedkin.data.federation import Clients, Federation, from_rows
from fedkin.data.partition import split
from fedkin.engine.simulation import Simulation
from fedkin.errors import BadInput, nearest
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import MLP, Model, Module, Softmax

CLASSES = 10
STEP_SIZE = 1e-3  # stable for 3,072 features between −1 and 1
SEED = 1


def softmax_net() -> nn.Module:
    """As a researcher writes softmax regression; the number of features is filled in at the first batch."""
    return nn.LazyLinear(CLASSES)


def hidden_net() -> nn.Module:
    """One hidden layer of 128 rectified linear units."""
    return nn.Sequential(nn.LazyLinear(128), nn.ReLU(), nn.Linear(128, CLASSES))


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


@dataclass(frozen=True)
class Work:
    """What is to be computed.

    clients, samples  how many clients, with how many samples each (on average, if sizes differ)
    shape             of one sample
    net               the model as a researcher writes it; its parameters lie in the same order as the engine's
    model             the same model for the engine
    formula           the operations of a round, for people
    quick_clients     how many clients the reduced form has
    seconds           roughly how long a round of all competitors lasts, at 150 · 10⁹ operations a second: for an
                      estimate before anything is measured
    sweep             whether a sweep is measured too
    """

    name: str
    clients: int
    samples: int
    shape: tuple[int, ...]
    net: Callable[[], nn.Module]
    model: Callable[["Work"], Model]
    formula: str
    quick_clients: int
    seconds: float
    batch_size: int = 256
    size_imbalance: float = 0.0
    sweep: bool = True

    @property
    def features(self) -> int:
        """D."""
        return int(np.prod(self.shape))

    @property
    def local(self) -> Local:
        """Ten passes in batches of a fixed order, so that all competitors do the same arithmetic.

        The penalty is large enough that a competitor without it would be found out by its model after one round.
        """
        return Local(epochs=10, batch_size=self.batch_size, l2=1e-2)

    def quick(self) -> "Work":
        """The same with a few clients."""
        return replace(self, clients=self.quick_clients)

    def federation(self) -> Federation:
        """The clients. Classes have different means, so that there is something to learn."""
        rng = np.random.default_rng(SEED)
        labels = np.arange(self.clients * self.samples) % CLASSES
        parts = split(labels, self.clients, size_imbalance=self.size_imbalance, scheme="paper", rng=rng)
        generator = torch.Generator().manual_seed(SEED)
        y = torch.as_tensor(labels[np.concatenate(parts)])
        x = torch.empty(len(y), self.features).uniform_(-0.5, 0.5, generator=generator)
        centres = torch.empty(CLASSES, self.features).uniform_(-0.5, 0.5, generator=generator)
        for k in range(CLASSES):  # class by class: all samples' centres at once would take as much memory as x
            x[y == k] += centres[k]
        train = from_rows(x, y, np.array([len(part) for part in parts]))
        return made_up(train, CLASSES, self.shape, self.name)

    def simulation(
        self, federation: Federation, algorithm: Algorithm | None = None, graph: SimilarityGraph | None = None
    ) -> Simulation:
        """The work for the engine; FedAvg unless said otherwise."""
        clients = len(federation.train)
        graph = graph or SimilarityGraph.edgeless(clients)
        return Simulation(
            federation=federation,
            model=self.model(self),
            algorithm=algorithm or FedAvg(step_size=STEP_SIZE),
            graph=graph,
            weights=graph.weights("samples", federation.train.sizes),
            local=self.local,
            seed=SEED,
        )

    def arithmetic(self) -> float:
        """Floating-point operations of all matrix products and convolutions of a round, done plainly.

        A layer with |W| weights, applied at o places of a sample, takes 2·|W|·o operations a sample forward, as many
        for the gradient of its weights, and as many for the gradient of its input, which the first layer does
        without. That times E·N samples. Biases, activations and averaging are left out.
        """
        forward = layer_operations(self.net(), self.shape)
        each = 2 * forward[0] + 3 * sum(forward[1:])
        return float(self.local.epochs * self.clients * self.samples * each)


def layer_operations(net: nn.Module, shape: tuple[int, ...]) -> list[int]:
    """Operations of every layer with weights, forward, on one sample: 2·|W|·o."""
    counts: list[int] = []

    def count(layer: nn.Module, _: tuple[Tensor, ...], out: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        counts.append(2 * weight.numel() * (out.numel() // len(weight)))

    net(torch.zeros(1, *shape))  # fills in the lazy layers
    for layer in net.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.register_forward_hook(count)
    net(torch.zeros(1, *shape))
    return counts


def made_up(train: Clients, classes: int, shape: tuple[int, ...], name: str) -> Federation:
    """A federation of made-up clients. Nothing is tested here, so the first one serves as testing client."""
    first = train.rows(0)
    test = from_rows(train.x[first], train.y[first], train.sizes[:1])
    ones = torch.ones(train.x.shape[1])
    return Federation(train, test, classes, shape, shift=0 * ones, scale=ones, name=name)


def _softmax(work: Work) -> Model:
    return Softmax(work.features, CLASSES)


def _hidden(work: Work) -> Model:
    return MLP(work.features, CLASSES, hidden=128)


def _module(work: Work) -> Model:
    return Module(work.net, work.shape, CLASSES)


LINEAR = "4·E·N·D·K"
WORKS: dict[str, Work] = {
    work.name: work
    for work in (
        Work("mnist-softmax", 100, 600, (784,), softmax_net, _softmax, LINEAR, quick_clients=4, seconds=7),
        Work("cifar-softmax", 100, 500, (3072,), softmax_net, _softmax, LINEAR, quick_clients=3, seconds=9),
        Work(
            "cifar-imbalanced",
            100,
            500,
            (3072,),
            softmax_net,
            _softmax,
            LINEAR,
            quick_clients=5,
            seconds=13,
            size_imbalance=1.0,
        ),
        Work(
            "mnist-mlp",
            100,
            600,
            (784,),
            hidden_net,
            _hidden,
            "E·N·(4·D·H + 6·H·K)",
            quick_clients=3,
            seconds=27,
        ),
        Work("many-tiny", 3000, 20, (784,), softmax_net, _softmax, LINEAR, quick_clients=40, seconds=25, batch_size=20),
        Work(
            "module",
            50,
            200,
            (1, 28, 28),
            convolutional_net,
            _module,
            "E·N·(4·|W₁|·o₁ + 6·Σ |Wₗ|·oₗ)",
            quick_clients=2,
            seconds=20,
            sweep=False,
        ),
    )
}


def work_named(name: str) -> Work:
    """A work by its name."""
    try:
        return WORKS[name]
    except KeyError:
        raise BadInput(f"there is no work '{name}'{nearest(name, WORKS)}") from None
