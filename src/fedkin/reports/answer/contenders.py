"""Methods as they enter a comparison, read from their runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedkin.data.measure import ACCURACY
from fedkin.reports.answer.scores import Score
from fedkin.reports.groups import groups_of, problem_of, varying
from fedkin.reports.labels import is_problem, is_seed, number, problem_part, setting_text
from fedkin.reports.run import Run
from fedkin.reports.selection import Edge, Method, methods, seed_of

ClientValues = Mapping[str, float]


@dataclass(frozen=True)
class Contender:
    """A method in a comparison. Values are by seed, and those of clients by seed and name.

    label      of the method
    algorithm  its name in the configuration
    setting    the settings that were chosen, in words
    values     score of the models that clients use
    clients    the same of each client on its own testing samples; empty where it was not recorded
    samples    number of testing samples of each client, where known
    tried      number of settings that were tried
    edges      tuned settings whose chosen value is at the edge of the values that were tried
    reference  whether it is no federated method: all samples in one place
    runs       the runs behind the values
    """

    label: str
    algorithm: str
    setting: str
    values: Mapping[str, float]
    clients: Mapping[str, ClientValues] = field(default_factory=dict)
    samples: Mapping[str, ClientValues] = field(default_factory=dict)
    tried: int = 1
    edges: tuple[Edge, ...] = ()
    reference: bool = False
    runs: tuple[Run, ...] = ()

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        known = [value for value in self.values.values() if math.isfinite(value)]
        return sum(known) / len(known) if known else math.nan


@dataclass(frozen=True)
class Field:
    """All that is known of the runs on one federation (data, partition and model).

    runs        all of them
    contenders  the methods that have a result, not in order
    score       what is compared
    validated   whether settings were chosen on validation samples, or there was nothing to choose
    """

    runs: tuple[Run, ...]
    contenders: tuple[Contender, ...]
    score: Score
    validated: bool


def fields_of(runs: Sequence[Run]) -> list[Field]:
    """The runs of an experiment, a field for each federation."""
    found: dict[object, list[Run]] = {}
    for run in runs:
        found.setdefault(problem_of(run), []).append(run)
    return [field_of(members) for members in found.values()]


def field_of(runs: Sequence[Run]) -> Field:
    """The field of runs on one federation.

    Where no validation samples are held out nothing can be chosen: then every setting is a contender of its own.
    """
    score = Score(next((run.measure for run in runs if len(run.series("round"))), ACCURACY))
    ended = [run for run in runs if run.status == "finished" and math.isfinite(score.used(run))]
    others = [run for run in ended if not math.isfinite(run.validation_loss)]
    settings = groups_of(others) if others else []
    found = [_contender(method, score) for method in methods(runs)]
    found += [_contender(Method(_row_label(group[0]), {}, "", tuple(group)), score) for group in settings]
    algorithms = [(group[0].algorithm, bool(group[0].settings.get("partition.pooled"))) for group in settings]
    is_chosen = len(set(algorithms)) == len(algorithms)
    return Field(tuple(runs), tuple(found), score, is_chosen)


def _contender(method: Method, score: Score) -> Contender:
    first = method.chosen[0]
    values, clients, samples = {}, {}, {}
    for run in method.chosen:
        seed = seed_of(run)
        values[seed] = score.used(run)
        clients[seed], samples[seed] = clients_of(run)
    return Contender(
        method.label,
        first.algorithm,
        method.tuned,
        values,
        {seed: each for seed, each in clients.items() if each},
        {seed: each for seed, each in samples.items() if each},
        method.tried,
        method.edges,
        bool(first.settings.get("partition.pooled")),
        method.chosen,
    )


def clients_of(run: Run) -> tuple[dict[str, float], dict[str, float]]:
    """The score of each client's model on its own testing samples, and their number where known, without newcomers."""
    own = [entry for entry in run.clients if "client" in entry and not entry.get("newcomer")]
    values = {str(entry["client"]): number(entry.get(f"own_{run.measure.name}")) for entry in own}
    samples = {str(entry["client"]): number(entry["test_samples"]) for entry in own if "test_samples" in entry}
    return {name: value for name, value in values.items() if math.isfinite(value)}, samples


def _row_label(run: Run) -> str:
    """A method with all settings in which it differs from others on its federation, other than seeds."""
    rest = [(key, value) for key, value in run.differing.items() if not (is_seed(key) or is_problem(key))]
    return ", ".join(filter(None, [run.method, *(setting_text(key, value) for key, value in rest)]))


def federation_title(run: Run, peers: Sequence[Run]) -> str:
    """The settings in which the federation of a run differs from those of its peers: `100 clients, a = 10`."""
    keys = [key for key in varying(peers) if is_problem(key) and not is_seed(key)]
    return ", ".join(problem_part(key, run.settings[key]) for key in keys if key in run.settings)
