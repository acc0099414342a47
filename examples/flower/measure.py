"""What Flower costs: seconds a round compared with the in-process engine, and the effect of u in half precision.

python examples/flower/measure.py            # prints the tables of docs/flower.md
python examples/flower/measure.py --scale    # 500 nodes in Flower's simulation beside the engine
"""

import argparse
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import torch

import fedkin
from fedkin import FedKin, Local
from fedkin.flower.wire import pack, unpack
from loopback.federation import Loopback

APP, SCALE = (Path(__file__).parent / name for name in ("digits", "scale"))
LOCAL = Local(epochs=5, batch_size=32, order="shuffled")
GAMMA = 0.05


@dataclass(frozen=True, kw_only=True)
class HalfKin(FedKin):
    """FedKin with u in half precision, as the Flower app sends it."""

    def send(self, server, round):
        got = super().send(server, round)
        rows = [unpack(pack({name: value[i] for name, value in got.items()}, half=True)) for i in range(len(round))]
        return {name: torch.stack([row[name] for row in rows]) for name in got}


def federation(nodes, seed=0):
    """As in the example app."""
    return fedkin.federate(fedkin.load("digits"), clients=nodes, class_imbalance=10.0, size_imbalance=1.0, seed=seed)


def trained(nodes, algorithm, rounds, seed=0):
    """A run of the in-process engine, with the averaging weights of the paper."""
    given = {"local": LOCAL, "weights": "adjacency", "rounds": rounds, "seed": seed}
    return fedkin.train(federation(nodes, seed), algorithm, **given)


def on_flower(nodes, rounds, **kind):
    """Seconds of each round except the first, in which the messages are sent."""
    with tempfile.TemporaryDirectory(prefix="fedkin-") as scratch, Loopback(Path(scratch), nodes=nodes, **kind) as link:
        if not kind.get("simulation"):
            for partition in range(nodes):
                link.start_node(partition)
        out = Path(scratch) / "out"
        run = link.run(APP, {"algorithms": "fedkin", "nodes": nodes, "rounds": rounds, "out": out})
        records = list(link.records(run, out / "fedkin"))
    return [record["seconds"] for record in records[1:]]


def seconds(rounds):
    """The first table."""
    print("| where | nodes | seconds a round (median) |\n| --- | ---: | ---: |")
    for nodes in (5, 20):
        result = trained(nodes, FedKin(step_size=GAMMA, beta=0.5), rounds=20)
        print(f"| in-process engine | {nodes} | {statistics.median(result.seconds[1:]):.3f} |", flush=True)
    for label, nodes, kind in (
        ("Flower simulation (Ray)", 5, {"simulation": True}),
        ("Flower simulation (Ray)", 20, {"simulation": True}),
        ("Flower deployment on loopback, apps forked (`make federation`)", 5, {"warm": True}),
        ("Flower deployment on loopback, a new process a message (Flower's way)", 5, {}),
    ):
        print(f"| {label} | {nodes} | {statistics.median(on_flower(nodes, rounds, **kind)):.2f} |", flush=True)


def halves(seeds, rounds):
    """The second table: the same runs with u in full and in half."""
    print("\n| u | download a parameter and round | test accuracy | test loss |\n| --- | ---: | ---: | ---: |")
    found = {}
    for kind in (FedKin, HalfKin):
        runs = [trained(20, kind(step_size=GAMMA, beta=0.5), rounds, seed) for seed in range(seeds)]
        found[kind] = runs
        bytes_down = {FedKin: "8 bytes", HalfKin: "6 bytes"}[kind]
        accuracy, loss = ([float(getattr(r, q)[-1]) for r in runs] for q in ("test_accuracy", "test_loss"))
        label = {FedKin: "in full", HalfKin: "difference in half"}[kind]
        print(f"| {label} | {bytes_down} | {np.mean(accuracy):.4f} | {np.mean(loss):.6f} |", flush=True)
    gap = max(np.abs(a.test_loss - b.test_loss).max() for a, b in zip(*found.values(), strict=True))
    flips = max(np.abs(a.test_accuracy - b.test_accuracy).max() for a, b in zip(*found.values(), strict=True))
    print(f"\nLargest difference in any round of any run: {gap:.1e} in test loss, {flips:.4f} in test accuracy.")


def scale(nodes, rounds):
    """The third table: many nodes, softmax regression on 784 features."""
    sys.path.insert(0, str(SCALE))
    from scale import task

    made = fedkin.from_clients([task.drawn(node) for node in range(nodes)], [task.drawn(nodes)], preprocess="none")
    given = {"local": task.LOCAL, "rounds": rounds, "evaluate": "test", "evaluate_every": rounds}
    result = fedkin.train(made, task.ALGORITHM, model=task.MODEL, **given)
    with (
        tempfile.TemporaryDirectory(prefix="fedkin-") as scratch,
        Loopback(Path(scratch), nodes=nodes, simulation=True) as link,
    ):
        run = link.run(SCALE, {"nodes": nodes, "rounds": rounds, "out": scratch})
        records = list(link.records(run, Path(scratch) / "scale"))
    own = statistics.median(record["train_metrics"]["seconds"] for record in records)
    later = [record["seconds"] for record in records[1:]]
    cores = len(os.sched_getaffinity(0))
    print(f"\n{nodes} nodes, {rounds} rounds, {cores} cores, {date.today().isoformat()}\n")
    print("| where | first round, s | later rounds, s (median) |\n| --- | ---: | ---: |")
    print(f"| in-process engine | {result.seconds[0]:.2f} | {statistics.median(result.seconds[1:]):.2f} |")
    print(f"| Flower simulation (Ray) | {records[0]['seconds']:.1f} | {statistics.median(later):.1f} |")
    print(f"| of which the nodes' own work, on {cores} cores | | {own * nodes / cores:.1f} |")


def main():
    """The tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="on Flower")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--scale", type=int, nargs="?", const=500, help="only the table of so many nodes (500)")
    given = parser.parse_args()
    if given.scale:
        scale(given.scale, given.rounds)
        return
    seconds(given.rounds)
    halves(given.seeds, rounds=60)


if __name__ == "__main__":
    main()
