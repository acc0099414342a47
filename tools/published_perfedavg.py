"""Per-FedAvg in FedU's table as its published code measures it: after two steps on *testing* batches.

    PYTHONPATH=tools python -m published_perfedavg --data DIR [--quick]

The experiment is that of `fedkin reproduce fedu`, with the same clients, seeds and rounds. In every round each client
takes two steps from the global model, of 0.03 and of 0.001, on batches of 20 of its testing samples, and is tested on
all of them; the published value is the best round. It shows what that is worth: nobody should measure so.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedkin.engine.simulation import Simulation
from fedkin.experiments.grid import plans
from fedkin.experiments.preparation import Preparation
from fedkin.paper.reproduce import read_reproduction

PART, STEPS, BATCH = "fedu-perfedavg", (0.03, 0.001), 20


def simulations(data: Path | None, quick: bool = False) -> Iterator[tuple[Simulation, int]]:
    """Per-FedAvg's runs, one for each seed, with their numbers of rounds."""
    part = next(one for one in read_reproduction("fedu", quick).parts if one.name == PART)
    for plan in plans(part.settings):
        yield Preparation(data).simulation(plan.config), plan.config.rounds


def stepped(simulation: Simulation, w: Tensor, x: Tensor, y: Tensor, order: Tensor) -> Tensor:
    """The parameters w after a step of each size on consecutive batches of samples in this order."""
    for number, step in enumerate(STEPS):
        batch = order[BATCH * number : BATCH * (number + 1)]
        if len(batch):
            equal = torch.full((len(batch),), 1 / len(batch))
            w = w - step * simulation.model.gradient(w, x[batch], y[batch], equal)
    return w


def best_rounds(simulation: Simulation, rounds: int) -> tuple[float, float]:
    """The highest accuracy in a round on all testing samples: of the global model, and as published."""
    test, generator = simulation.federation.test, torch.Generator().manual_seed(simulation.seed)
    ends = np.cumsum(test.sizes)
    state, best = simulation.start(), (0.0, 0.0)
    for _ in range(rounds):
        state = simulation.advance(state)
        w, right = state.model.flatten(), [0, 0]
        for first, end in zip(ends - test.sizes, ends, strict=True):
            x, y = test.x[first:end], test.y[first:end]
            order = torch.randperm(len(y), generator=generator)
            for place, used in enumerate((w, stepped(simulation, w, x, y, order))):
                right[place] += int((simulation.model.scores(used, x).argmax(-2).flatten() == y).sum())
        best = max(best[0], right[0] / len(test.y)), max(best[1], right[1] / len(test.y))
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="where mnist.npz lies")
    parser.add_argument("--quick", action="store_true", help="a trial on the embedded digits")
    given = parser.parse_args()
    found = []
    print("seed  global model, best round  after two steps on testing samples, best round")
    for simulation, rounds in simulations(given.data, given.quick):
        found.append(best_rounds(simulation, rounds))
        print(f"{simulation.seed:4}  {found[-1][0]:24.2%}  {found[-1][1]:46.2%}", flush=True)
    print(f"mean  {np.mean([one for one, _ in found]):24.2%}  {np.mean([one for _, one in found]):46.2%}")


if __name__ == "__main__":
    main()
