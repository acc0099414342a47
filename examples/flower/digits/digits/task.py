"""What server and nodes share: the model, and the partition of the digits."""

from functools import cache

from flwr.app import Context

from fedkin import Federation, Softmax, federate, load

MODEL = Softmax(features=64, outputs=10)


@cache
def federation(nodes: int, class_imbalance: float, size_imbalance: float, seed: int) -> Federation:
    """The embedded digits, distributed over the nodes. In a real federation every node loads data of its own."""
    return federate(
        load("digits"), clients=nodes, class_imbalance=class_imbalance, size_imbalance=size_imbalance, seed=seed
    )


def of(context: Context) -> Federation:
    """The federation that a run's configuration describes."""
    config = context.run_config
    return federation(
        int(config["nodes"]), float(config["class-imbalance"]), float(config["size-imbalance"]), int(config["seed"])
    )
