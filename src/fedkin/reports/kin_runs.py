"""Runs of algorithms with kin, read from their folders: who is kin, what was chosen, what each client gains."""

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, triu
from scipy.sparse.csgraph import connected_components

from fedkin.data.measure import ACCURACY, Measure
from fedkin.errors import BadInput, nearest
from fedkin.experiments.tensor_files import read_tensors
from fedkin.reports.run import Run
from fedkin.reports.runs import collect
from fedkin.types import Floats, Integers, Record

GRAPH_FILE, CLIENTS_FILE = "kin.safetensors", "clients.jsonl"
# Settings in which a run may differ from the one it is compared with: the clients' data are the same.
_ASIDE = ("partition.validation", "data.preprocess")


@dataclass(frozen=True)
class Gains:
    """What the clients' own models gain over other models on the same testing samples, (C,); NaN where unknown.

    over    the other model in words
    others  its value of the main measure at each client
    run     the run it is from, if it is another one
    """

    over: str
    own: Floats
    others: Floats
    run: str = ""
    measure: Measure = ACCURACY

    @cached_property
    def each(self) -> Floats:
        """Gains of the clients for which both are known."""
        return self.all[np.isfinite(self.all)]

    @property
    def all(self) -> Floats:
        """Gains of all clients: own − others, or others − own if lower is better."""
        return self.own - self.others if self.measure.higher else self.others - self.own

    @property
    def share_better(self) -> float:
        """Share of the clients whose own model is better."""
        return float((self.each > 0).mean())

    @property
    def share_worse(self) -> float:
        """Share of the clients that the other model would serve better."""
        return float((self.each < 0).mean())

    def among(self, chosen: NDArray[np.bool_]) -> "Gains":
        """The gains of some clients, given as a mask, (C,)."""
        return replace(self, others=np.where(chosen, self.others, np.nan))

    def worst_tenth(self, of: Floats) -> float:
        """Mean of the tenth of the clients (at least one) with the worst values."""
        return self.measure.worst_decile(of[np.isfinite(self.all)])

    def points(self, gain: float) -> str:
        """A gain with its sign, in percentage points if it is one of accuracy: `+3.2`, `−0.4`."""
        form = "+.1f" if self.measure is ACCURACY else "+.3g"
        return f"{self.measure.times * gain:{form}}".replace("-", "−")


@dataclass(frozen=True)
class KinRun:
    """A run with kin.

    clients  the objects of clients.jsonl; names alone if the federation is not paired
    weights  P_in, the weights with which each client averages its kin, (C, C); None if all start at the global model
    rounds   the records of the rounds
    gains    over other models, the most important first
    """

    run: Run
    clients: list[Record]
    weights: csr_array | None
    rounds: list[Record]
    gains: list[Gains]

    @property
    def names(self) -> list[str]:
        """The names of the clients."""
        return [str(client["client"]) for client in self.clients]

    @property
    def new(self) -> NDArray[np.bool_]:
        """Whether each client is a newcomer, which was never sampled, (C,)."""
        return np.array([bool(client.get("newcomer")) for client in self.clients])

    def known(self, key: str) -> Floats | None:
        """A number that is known of every client, (C,), or None."""
        values = [client.get(key) for client in self.clients]
        return None if any(value is None for value in values) else np.array(values, dtype=np.float64)

    @cached_property
    def pairs(self) -> csr_array:
        """1 for two clients one of which is kin of the other, (C, C), symmetric, with an empty diagonal."""
        clients = len(self.clients)
        if self.weights is None:
            return csr_array((clients, clients))
        either = csr_array(((self.weights + self.weights.T) > 0).astype(np.float64))
        either.setdiag(0)
        either.eliminate_zeros()
        return either

    @cached_property
    def edges(self) -> Integers:
        """The pairs of kin, (E, 2), the smaller number first."""
        upper = triu(self.pairs, 1).tocoo()
        return np.stack([upper.row, upper.col], axis=1).astype(np.int64)

    @property
    def components(self) -> Integers:
        """Sizes of the groups of clients that are connected by kin, largest first."""
        _, of = connected_components(self.pairs, directed=False)
        return np.sort(np.bincount(of))[::-1]

    def purity(self) -> tuple[float, float] | None:
        """Share of the pairs of kin that are of one true kind, and that share of all pairs; None if unknown."""
        kinds = self.known("kind")
        if kinds is None or not len(self.edges):
            return None
        counts = np.unique(kinds, return_counts=True)[1]
        chance = (counts * (counts - 1)).sum() / (len(kinds) * (len(kinds) - 1))
        return float((kinds[self.edges[:, 0]] == kinds[self.edges[:, 1]]).mean()), float(chance)

    def angle(self) -> float | None:
        """Mean angle between kin in degrees (90 by chance), if the clients have angles and no kinds."""
        angles = self.known("angle")
        if angles is None or self.known("kind") is not None or not len(self.edges):
            return None
        apart = abs(angles[self.edges[:, 0]] - angles[self.edges[:, 1]]) % 360
        return float(np.minimum(apart, 360 - apart).mean())

    def choices(self) -> list[tuple[int, str]]:
        """What clients start from and use, with the round after which it was first so."""
        if any("start" in record for record in self.rounds):
            said = [(int(record["round"]), _choice(record)) for record in self.rounds if "start" in record]
            return said[:1] + [after for before, after in pairwise(said) if after[1] != before[1]]
        hyper = self.run.hyperparameters
        source, count = hyper.get("kin", "graph"), hyper.get("neighbours", 24)
        return [(0, "neighbours in the graph" if source == "graph" else f"{count} nearest by {source}")]

    def others(self) -> dict[str, int]:
        """Number of clients that differ from the common choice at the end, by what they start from and use."""
        last = [record["others"] for record in self.rounds[-1:] if isinstance(record.get("others"), dict)]
        return {str(words): int(count) for words, count in last[0].items()} if last else {}


def _choice(record: Record) -> str:
    start = "the global model" if record["start"] == "global" else str(record["start"])
    used = {"own": ", then own model", "alone": ", but models trained alone are used"}.get(str(record.get("uses")), "")
    return f"{start}{used}"


# -- reading -----------------------------------------------------------------------------------------------------------


def kin_runs(folder: Path | str, name: str | None = None) -> list[KinRun]:
    """The runs with kin in a folder, or the one of this name."""
    found = [run for run in collect(folder) if _has_kin(run)]
    if name is not None:
        chosen = [run for run in found if run.name == name]
        if not chosen:
            raise BadInput(
                f"there is no run with kin called '{name}' in {folder}{nearest(name, [r.name for r in found])}"
            )
        found = chosen
    if not found:
        raise BadInput(
            f"no finished run in {folder} has kin: run an experiment with the algorithm 'kin', or 'fedkin' with "
            "kappa = 1, and again with --fresh if it was run by an earlier version"
        )
    return [_read_kin_run(run) for run in found]


def kin_run_of(run: Run) -> KinRun | None:
    """A run with its kin; None if it has none, or if its files are damaged."""
    try:
        return _read_kin_run(run) if _has_kin(run) else None
    except BadInput:
        return None


def _has_kin(run: Run) -> bool:
    if (run.folder / GRAPH_FILE).exists():
        return True
    return bool(run.summary) and any("start" in record for record in _objects(run.folder / "rounds.jsonl")[-1:])


def _read_kin_run(run: Run) -> KinRun:
    clients, weights = _objects(run.folder / CLIENTS_FILE), _read_weights(run.folder)
    if not clients:
        clients = [{"client": str(i)} for i in range(weights.shape[0] if weights is not None else 0)]
    if not clients or (weights is not None and weights.shape[0] != len(clients)):
        raise BadInput(f"the files about clients in {run.folder} do not fit together: run it again with --fresh")
    return KinRun(run, clients, weights, _objects(run.folder / "rounds.jsonl"), _gains(run, clients))


def _read_weights(folder: Path) -> csr_array | None:
    path = folder / GRAPH_FILE
    if not path.exists():
        return None
    saved = read_tensors(path)
    if saved is None:
        raise BadInput(f"{path} is damaged: run the experiment again with --fresh")
    parts = {name: tensor.numpy() for name, tensor in saved[0].items()}
    clients = len(parts["offsets"]) - 1
    return csr_array((parts["weights"], parts["clients"], parts["offsets"]), shape=(clients, clients))


def _objects(path: Path) -> list[Record]:
    """The objects in a file, one a line, up to the first damaged one; none if there is no such file."""
    found: list[Record] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


# -- comparison --------------------------------------------------------------------------------------------------------


def _gains(run: Run, clients: list[Record]) -> list[Gains]:
    """Gains over FedAvg's model, over training alone, and over the average of all models of the run."""
    name = run.measure.name
    if any(f"own_{name}" not in client for client in clients):
        return []
    own = np.array([client[f"own_{name}"] for client in clients])
    peers = [peer for peer in _peers(run) if _same_clients(run, peer)]
    gains = []
    for algorithm, key, words in (
        ("fedavg", f"global_{name}", "FedAvg's model"),
        ("alone", f"own_{name}", "training alone"),
    ):
        if (other := _best([peer for peer in peers if peer.algorithm == algorithm])) is not None:
            known = {
                row["client"]: row[key] for row in _objects(other.folder / CLIENTS_FILE) if _is_fair(row, algorithm)
            }
            others = np.array([known.get(client["client"], np.nan) for client in clients])
            gains.append(Gains(words, own, others, other.name, run.measure))
    average = np.array([client[f"global_{name}"] for client in clients])
    return [*gains, Gains("the average of all models", own, average, measure=run.measure)]


def _is_fair(row: Record, algorithm: str) -> bool:
    """A newcomer has not trained alone."""
    return not (algorithm == "alone" and row.get("newcomer"))


def _peers(run: Run) -> list[Run]:
    """The other runs of the experiment that know their clients."""
    found = []
    for place in sorted(run.folder.parent.iterdir()):
        if place != run.folder and (place / CLIENTS_FILE).exists() and (place / "config.json").exists():
            found += [peer for peer in collect(place) if peer.folder == place]
    return found


def _same_clients(run: Run, other: Run) -> bool:
    """Whether clients have the same data in both runs, up to what is held out for validation."""

    def about(settings: Record) -> Record:
        return {
            key: value
            for key, value in settings.items()
            if key.split(".")[0] in ("data", "partition", "seed") and key not in _ASIDE
        }

    return about(run.settings) == about(other.settings)


def _best(others: list[Run]) -> Run | None:
    """Of several runs to compare with, the one in which the models that clients use are best."""

    def gain(other: Run) -> float:
        value = other.measure.gain(other.used_value, 0.0)
        return -math.inf if math.isnan(value) else value

    return max(others, key=gain, default=None)
