"""The table of docs/algorithms.md, computed from the classes: `PYTHONPATH=tools python -m algorithm_table`."""

from pathlib import Path

import numpy as np
import torch

from fedkin.algorithms import (
    ALGORITHMS,
    APFL,
    Algorithm,
    ClientRows,
    FedKin,
    Local,
    PerFedAvg,
    PowerOfChoice,
    Round,
    label_of,
    trial,
)
from fedkin.algorithms.base import row_bytes
from fedkin.algorithms.registry import name_of
from fedkin.engine.local_work import two_steps
from fedkin.engine.traffic import Traffic
from fedkin.graph.similarity import SimilarityGraph

PAGE = Path(__file__).parents[1] / "docs" / "algorithms.md"
BEGIN, END = "<!-- table -->", "<!-- end of the table -->"
P, N = 100_003, 20  # parameters, clients
ROUNDS = range(12)

# What for, and variants of an algorithm that exchange or compute something else.
PURPOSE = {
    "fedavg": "the baseline: one model",
    "fedprox": "clients that drift apart in long rounds",
    "fedkin": "one model, with gradients taken nearer to those of similar clients",
    "kin": "clients in kinds that nobody has named",
    "fedsgd": "the limit of one step per round",
    "alone": "what clients reach without each other",
    "finetuned": "the simplest model of a client's own",
    "ifca": "clients in a known number of kinds",
    "fedavgm": "rounds that differ because few clients are sampled",
    "fedadagrad": "parameters of very different scale: rare features, embeddings",
    "fedadam": "the same, in long runs",
    "fedyogi": "the same, if the size of updates changes much",
    "scaffold": "clients that differ and are sampled often",
    "fednova": "clients with very different numbers of steps",
    "feddyn": "clients that differ, full participation or nearly so",
    "powerofchoice": "fewer rounds at the same number of sampled clients; the clients with the largest losses first",
    "ditto": "a model of one's own that stays near the global one",
    "apfl": "the same as a mixture of two models",
    "mrmtl": "models of their own that stay near each other's average",
    "l2gd": "the same with few exchanges",
    "pfedme": "a global model from which clients adapt by a proximal step",
    "perfedavg": "a global model from which clients adapt by a gradient step",
    "fedu": "clients whose similarity is known as a graph",
    "mocha": "clients whose similarity is to be learnt, linear models",
    "cfl": "clients in an unknown number of kinds",
    "fedamp": "clients whose similarity shows in their models",
    "fedem": "clients whose data are mixtures of a few kinds",
}
VARIANTS: dict[str, list[tuple[str, Algorithm, str]]] = {
    "fedkin": [("κ = 1", FedKin(beta=1.0, kappa=1.0), "clients in kinds: each starts at the average of its kin")],
    "powerofchoice": [("stale", PowerOfChoice(losses="stale"), "the same without asking for losses")],
    "apfl": [("adaptive", APFL(adaptive=True), "every client finds its own share")],
    "perfedavg": [
        ("hf", PerFedAvg(variant="hf"), "the same with second derivatives"),
        ("separate", PerFedAvg(separate=True), "the same with a batch for each gradient, as published"),
    ],
}


def amount(numbers: int) -> str:
    """A number of numbers in units of P: `2P + 1`."""
    models, rest = divmod(numbers, P)
    whole = {0: "", 1: "P"}.get(models, f"{models}P")
    return " + ".join(filter(None, [whole, str(rest) if rest else ""])) or "0"


def a_round(number: int) -> Round:
    """A round with all clients, which are all similar."""
    everyone = np.arange(N)
    return Round(number, everyone, np.full(N, 1 / N), SimilarityGraph.uniform(N), N)


def row(label: str, algorithm: Algorithm, purpose: str) -> str:
    """A row of the table."""
    model, first = torch.zeros(1, P), a_round(0)
    server, memory = algorithm.start(model, first), algorithm.remember(model)
    per_client = sum(value.default.shape[-1] for value in server.values() if isinstance(value, ClientRows))
    state = amount(sum(value.numel() for value in server.values() if not isinstance(value, ClientRows)))
    if per_client:
        state += " + " + {1: "N", P: "PN"}.get(per_client, f"({amount(per_client)})N")
    found: dict[str, list[int]] = {"down": [], "up": []}
    for number in ROUNDS:
        round = a_round(number)
        got = algorithm.send(server, round)
        names = trial(algorithm, got, memory)
        traffic = Traffic(row_bytes(got), names.bytes_up, N).needed(*algorithm.exchanges(round))
        found["down"].append(traffic.down // 4)
        found["up"].append(traffic.up // 4)
    down, up = (" or ".join(amount(n) for n in sorted(set(each))) for each in found.values())
    script = two_steps(algorithm, Local(), model.device, names.got, names.memory)
    space = "plain" if script is None else "fast"
    kept = amount(sum(value.shape[-1] for value in memory.values()))
    rule = (type(algorithm).__doc__ or "").splitlines()[0].rstrip(".")
    personal = "own" if algorithm.is_personal else "global"
    return f"| {label} | {rule} | {personal} | {state} | {kept} | {down} | {up} | {space} | {purpose} |"


def table() -> str:
    """The table of all algorithms of the registry."""
    head = "| algorithm | rule | model in use | at the server | at a client | down | up | space | what for |"
    rows = [head, "|" + "---|" * head.count(" | ") + "---|"]
    for name, kind in ALGORITHMS.items():
        rows.append(row(f"{label_of(name)} (`{name}`)", kind(), PURPOSE[name]))
        rows += [row(f"{label_of(name)}, {words}", one, purpose) for words, one, purpose in VARIANTS.get(name, [])]
        assert all(name_of(one) == name for _, one, _ in VARIANTS.get(name, []))
    return "\n".join(rows)


def main() -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
