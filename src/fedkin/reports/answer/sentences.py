"""A ranking in words: the conclusion first, then what supports it, then what could change it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedkin.algorithms import label_of
from fedkin.reports.answer.cautions import cautions_of
from fedkin.reports.answer.contenders import Contender, Field
from fedkin.reports.answer.intervals import LEVEL, Difference
from fedkin.reports.answer.ranking import FEDAVG, FINE_TUNED, SPOKEN_BASELINES, Ranking, ranked
from fedkin.reports.answer.scores import Score
from fedkin.reports.labels import listed
from fedkin.reports.selection import ALONE

MOST_NAMED = 8  # so many names are listed in a sentence


@dataclass(frozen=True)
class Answer:
    """What a field says.

    headline  the conclusion, one or two sentences
    details   sentences that support it
    cautions  sentences about what could change it
    ranking   the numbers behind them; None if there is nothing to compare
    """

    headline: str
    details: tuple[str, ...]
    cautions: tuple[str, ...]
    ranking: Ranking | None

    @property
    def sentences(self) -> list[str]:
        """All of it in order."""
        return [self.headline, *self.details, *self.cautions]


def answer_of(field: Field) -> Answer:
    """The conclusion of a field in words."""
    ranking = ranked(field)
    cautions = tuple(cautions_of(field, ranking))
    if ranking is None:
        return Answer(_nothing_yet(field), (), cautions, None)
    return Answer(_headline(ranking), tuple(_details(ranking)), cautions, ranking)


def _nothing_yet(field: Field) -> str:
    states = Counter(run.status for run in field.runs)
    if field.contenders:
        return "Only references have finished: run a federated method, such as fedavg, to compare."
    words = [f"{states[state]} {state}" for state in ("running", "diverged") if states[state]]
    return f"There is no answer yet: no run has finished ({', '.join(words) or 'none has begun'})."


# -- the headline ------------------------------------------------------------------------------------------------------


def _headline(ranking: Ranking) -> str:
    best, score = ranking.best, ranking.score
    reaches = f"{score.name} {score.text(best.mean)} {_where(ranking)}"
    if len(ranking.order) == 1:
        return f"Only one method has finished, {spoken(best)}: {reaches}. Run others to compare."
    second = ranking.order[1]
    lead = _lead(second, ranking.behind[second.label], score)
    if best.algorithm in (FINE_TUNED, ALONE):
        return f"Nothing beats {spoken(best)}: {reaches}, {lead}."
    for algorithm in (FINE_TUNED, ALONE):
        base = ranking.first_of(algorithm)
        if base is not None and not (over := ranking.behind[base.label]).is_better:
            known = "no measurable difference" if over.is_tie else "which may be chance: there is no interval"
            return (
                f"Nothing measurably beats {spoken(base)}: {spoken(best)} has {reaches}, "
                f"{score.amount(over.mean)} better, {known}."
            )
    if ranking.tied:
        names = listed([spoken(best), *(spoken(other) for other in ranking.tied)])
        values = listed([score.text(one.mean) for one in [best, *ranking.tied]])
        return (
            f"{_capital(names)} are tied for best: {score.name} {values} {_where(ranking)}, no measurable difference."
        )
    return f"{_capital(spoken(best))} is best: {reaches}, {lead}."


def _lead(second: Contender, gap: Difference, score: Score) -> str:
    """How far the best is ahead of the next."""
    if gap.is_better:
        return f"{score.amount(gap.mean)} better than the next, {spoken(second)}"
    if gap.is_tie:
        return f"with no measurable difference from the next, {spoken(second)}"
    if not score.number(gap.mean).strip("0."):
        return f"the same as the next, {spoken(second)}"
    return f"{score.amount(gap.mean)} better than the next, {spoken(second)}, which may be chance: there is no interval"


NO_INTERVAL = "no interval: there is one seed and no result of single clients"


def interval_text(gap: Difference, score: Score) -> str:
    """An interval in words: `95 % interval 2.9 to 9.8 points, paired over 24 clients`."""
    if not gap.has_interval:
        return NO_INTERVAL
    ends = f"{score.number(gap.low)} to {score.number(gap.high)}{score.points}"
    return f"{100 * LEVEL:.0f} % interval {ends}, paired over {gap.pairs} {gap.over}"


def spoken(contender: Contender) -> str:
    """The name of a method in a sentence; baselines in words."""
    plain_label = contender.label == label_of(contender.algorithm)
    return (
        SPOKEN_BASELINES[contender.algorithm]
        if plain_label and contender.algorithm in SPOKEN_BASELINES
        else contender.label
    )


def _where(ranking: Ranking) -> str:
    if any(one.clients for one in ranking.order):
        return "on the clients' own test samples"
    return "of the global model on all test samples"


# -- details -----------------------------------------------------------------------------------------------------------


def _details(ranking: Ranking) -> list[str]:
    best, score = ranking.best, ranking.score
    rivals = [*ranking.order[1:2], *ranking.tied, *map(ranking.first_of, (FINE_TUNED, ALONE, FEDAVG))]
    others = {one.label: one for one in rivals if one is not None and one is not best}
    found = [_against(best, one, ranking.behind[label], score) for label, one in others.items()]
    if (alone := _alone_sentence(ranking)) is not None:
        found.append(alone)
    return [
        *found,
        *(
            f"{_capital(one.label)}, with all samples in one place, which no federation has: "
            f"{score.name} {score.text(one.mean)}."
            for one in ranking.references
        ),
    ]


def _against(best: Contender, base: Contender, gap: Difference, score: Score) -> str:
    name = f"{_capital(spoken(base))} has {score.text(base.mean)}: "
    if gap.is_better:
        return f"{name}{spoken(best)} is {score.amount(gap.mean)} better ({interval_text(gap, score)})."
    if gap.is_tie:
        return f"{name}no measurable difference from {spoken(best)} ({interval_text(gap, score)})."
    return f"{name}{score.amount(gap.mean)} less good than {spoken(best)} ({interval_text(gap, score)})."


def _alone_sentence(ranking: Ranking) -> str | None:
    """Who would be better off alone than with the best method."""
    best = ranking.best
    if best.algorithm == ALONE:
        return "Clients do best by themselves: in this comparison federated learning brings them nothing."
    found = ranking.better_alone(best)
    if found is None:
        return None
    if not found.count:
        every = "client" if found.seeds == 1 else "client in any seed"
        return f"No {every} would be better off alone than with {spoken(best)}."
    if found.seeds == 1:
        names = _named(sorted(found.by_client))
        are = f"{found.count} of {found.pairs} clients would"
        return f"{are} be better off alone than with {spoken(best)}: {names}."
    often = [name for name, times in sorted(found.by_client.items()) if 2 * times > found.seeds]
    tail = f"; in most seeds: {_named(often)}" if often else "; nobody in most seeds"
    mean, clients = found.count / found.seeds, found.pairs / found.seeds
    return (
        f"On average over {found.seeds} seeds, {mean:.3g} of {clients:.3g} clients would be better off alone than with "
        f"{spoken(best)}{tail}."
    )


def _named(names: Sequence[str]) -> str:
    shown = list(names[:MOST_NAMED])
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _capital(text: str) -> str:
    """The beginning of a sentence; names such as pFedMe stay as they are.

    >>> _capital("training alone"), _capital("pFedMe")
    ('Training alone', 'pFedMe')
    """
    first = text.partition(" ")[0]
    return text if first != first.lower() else text[:1].upper() + text[1:]
