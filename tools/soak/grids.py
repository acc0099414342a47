"""Ten kinds of experiments, as changes to one file."""

from dataclasses import dataclass

EXPERIMENT = """
name = "soak"
rounds = 20
checkpoint_every = 4

[partition]
clients = 8
class_imbalance = 2
size_imbalance = 0.7

[local]
step_size = 0.05
epochs = 2
batch_size = 32
"""


@dataclass(frozen=True)
class Grid:
    """A kind of experiment: settings of it, and how many numbers lanes may keep at once (0: as many as usual)."""

    settings: tuple[str, ...]
    most_numbers: int = 0


MODEL = 65 * 10  # parameters of softmax regression on the digits

GRIDS = {
    "one run": Grid(("algorithm.name=fedkin", "algorithm.beta=0.5")),
    "lanes": Grid(("algorithm.name=fedkin", "algorithm.beta=[0.9, 0.7, 0.5]", "l2=[0.0, 1e-4]")),
    "diverging lanes": Grid(("step_size=[0.05, 1e5, 0.02, 3e6]", "algorithm.name=fedavg")),
    "groups that memory limits": Grid(
        ("step_size=[0.05, 1e5, 0.02, 0.03, 0.04]", "algorithm.name=fedprox"), most_numbers=2 * 8 * MODEL
    ),
    "several seeds": Grid(("seed=[0, 1, 2]", "algorithm.name=['fedavg', 'fedkin']")),
    "sampled clients": Grid(
        ("take_part=3", "algorithm.name=fedkin", "algorithm.absent=last", "algorithm.beta=[0.9, 0.5]")
    ),
    "shuffled batches": Grid(("order=shuffled", "clip=[0.5, inf]", "algorithm.name=['fedavg', 'fedprox']")),
    "a network": Grid(("model.kind=mlp", "model.hidden=8", "algorithm.name=['fedavg', 'fedkin']")),
    "an algorithm with memory": Grid(
        ("algorithm.name=soak.algorithms:Momentum", "algorithm.rho=[0.9, 0.0, 0.5]", "take_part=5")
    ),
    "schedules": Grid(
        (
            "algorithm.name=fedkin",
            "algorithm.beta=[{from = 0.3, to = 1.0, over = 20, shape = 'step'}, {from = 0.5, to = 1.0, over = 30}]",
            "step_size={from = 0.1, to = 0.01, over = 25, shape = 'cosine'}",
        )
    ),
}
