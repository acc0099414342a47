"""What could change the answer: few seeds, edges of grids, runs that are missing, few testing samples."""

from collections import Counter
from collections.abc import Iterator

from fedkin.algorithms import label_of
from fedkin.experiments.results import COMPARISON_FILE
from fedkin.files import json_object
from fedkin.reports.answer.contenders import Field
from fedkin.reports.answer.ranking import FEDAVG, FINE_TUNED, Ranking
from fedkin.reports.labels import listed, plain, short
from fedkin.reports.privacy import privacy_sentences
from fedkin.reports.selection import ALONE, Edge

FEW_SAMPLES = 30  # with fewer testing samples one of them weighs more than 3 points at a client
ENOUGH_SEEDS = 5
MANY_EDGES = 3  # more of them are one sentence
MANY_LEFT_OUT = 2  # likewise


def cautions_of(field: Field, ranking: Ranking | None) -> Iterator[str]:
    """Sentences, the most important first; each ends in what to do about it."""
    if ranking is not None:
        yield from _choice(field, ranking)
        yield from _seeds(ranking)
        yield from _edges(ranking)
    yield from privacy_sentences(field.runs)
    yield from _unfinished(field)
    yield from _left_out(field)
    if ranking is not None:
        yield from _missing(ranking)
        yield from _budgets(ranking)
        yield from _few_samples(ranking)


def _choice(field: Field, ranking: Ranking) -> Iterator[str]:
    if not field.validated:
        yield (
            "No setting was chosen honestly: clients hold out no validation samples, so every setting is a row, and "
            f"the best of {len(ranking.order)} rows looks better than it is. Set partition.validation = 0.2."
        )


def _seeds(ranking: Ranking) -> Iterator[str]:
    counts = [len(one.values) for one in ranking.order]
    if max(counts) == 1:
        over = "clients" if any(gap.over == "clients" for gap in ranking.behind.values()) else ""
        what = "intervals show the spread over clients, not over seeds" if over else "there is no spread to judge by"
        yield f"There is one seed only: {what}. Run seed = [0, 1, 2, 3, 4]."
    elif max(counts) < ENOUGH_SEEDS:
        yield f"There are {max(counts)} seeds only, so intervals are wide. Run five."
    if len(set(counts)) > 1:
        fewer = [one.label for one in ranking.order if len(one.values) < max(counts)]
        yield f"Not all methods have results of all {max(counts)} seeds: {', '.join(fewer)} {_has(fewer)} fewer."


def _has(names: list[str]) -> str:
    return "have" if len(names) > 1 else "has"


def _edges(ranking: Ranking) -> Iterator[str]:
    found = [(edge, one.label) for one in (*ranking.order, *ranking.references) for edge in one.edges]
    if len(found) > MANY_EDGES:  # as with few trials each, of which one in two is the smallest or the largest
        methods: dict[Edge, list[str]] = {}
        for edge, label in found:
            methods.setdefault(edge, []).append(label)
        words = [f"{_value_of(edge)}, the {_end(edge)}, of {listed(labels)}" for edge, labels in methods.items()]
        yield f"Chosen at the edge of what was tried: {'; '.join(words)}. Try further values, or give more trials."
        return
    for edge, label in found:
        yield (
            f"{label}: the best {_value_of(edge)} is the {_end(edge)} that was tried, at the edge of its grid. Try "
            f"{'larger' if edge.largest else 'smaller'} ones."
        )


def _value_of(edge: Edge) -> str:
    return f"{short(edge.setting)} = {plain(edge.value)}"


def _end(edge: Edge) -> str:
    return "largest" if edge.largest else "smallest"


def _unfinished(field: Field) -> Iterator[str]:
    states = Counter(run.status for run in field.runs)
    total = len(field.runs)
    if states["diverged"]:
        names = dict.fromkeys(label_of(run.algorithm) for run in field.runs if run.status == "diverged")
        yield (
            f"{states['diverged']} of {total} runs diverged ({', '.join(names)}) and cannot be chosen. "
            "Smaller step sizes do not."
        )
    if states["running"]:
        yield f"{states['running']} of {total} runs have not finished and are left out. `fedkin run` continues them."


def _left_out(field: Field) -> Iterator[str]:
    record = json_object(field.runs[0].folder.parent / COMPARISON_FILE) if field.runs else None
    reasons: dict[str, str] = (record or {}).get("left_out", {})
    if len(reasons) > MANY_LEFT_OUT:
        names = listed(list(reasons))
        yield f"{names} are left out, as other settings do not allow them: {COMPARISON_FILE} has the reasons."
        return
    for label, reason in reasons.items():
        yield f"{label} is left out: {reason}."


def _missing(ranking: Ranking) -> Iterator[str]:
    wanted = (FINE_TUNED, ALONE, FEDAVG)
    missing = [name for name in wanted if ranking.first_of(name) is None]
    if missing:
        names = ", ".join(missing)
        yield f"A fair comparison has rows that are missing here: {names}. Add them as [[algorithm]]."


def _budgets(ranking: Ranking) -> Iterator[str]:
    tried = {one.label: one.tried for one in ranking.order}
    if len(set(tried.values())) > 1:
        words = ", ".join(f"{label} {count}" for label, count in tried.items())
        yield f"Methods had different numbers of settings to choose from: {words}. More trials find better settings."


def _few_samples(ranking: Ranking) -> Iterator[str]:
    sizes = {name: count for known in ranking.best.samples.values() for name, count in known.items()}
    if sizes and min(sizes.values()) < FEW_SAMPLES and ranking.score.in_percent:
        name, count = min(sizes.items(), key=lambda item: item[1])
        few = sum(count < FEW_SAMPLES for count in sizes.values())
        have = "has" if few == 1 else "have"
        yield (
            f"{few} of {len(sizes)} clients {have} fewer than {FEW_SAMPLES} test samples: at client {name} one sample "
            f"of {count:.0f} is {100 / count:.1f} points, so results of single clients are partly chance."
        )
