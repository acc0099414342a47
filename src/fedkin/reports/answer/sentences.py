"""A ranking in words: the conclusion first, then what supports it, then what could change it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedkin.reports.answer.cautions import cautions_of
from fedkin.reports.answer.contenders import Contender, Field
from fedkin.reports.answer.intervals import Difference
from fedkin.reports.answer.ranking import FEDAVG, FINE_TUNED, Ranking, ranked
from fedkin.reports.answer.scores import Score
from fedkin.reports.answer.ties import thrift_sentences, ties_sentence
from fedkin.reports.answer.words import capital, interval_text, spoken
from fedkin.reports.labels import listed
from fedkin.reports.selection import ALONE

MOST_NAMED = 8  # so many names are listed in a sentence
MANY_TIES = 3  # more of them are one sentence


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
    if unbeaten := [base for base in _baselines(ranking) if not ranking.behind[base.label].is_better]:
        over = [ranking.behind[base.label] for base in unbeaten]
        is_tie = all(gap.is_tie for gap in over)
        return (
            f"Nothing measurably beats {' or '.join(map(spoken, unbeaten))}: {spoken(best)} has {reaches}, "
            f"{_amounts(over, score)} better, "
            f"{'no measurable difference' if is_tie else 'which may be chance: there is no interval'}."
        )
    if ranking.tied:
        names = listed([spoken(best), *(spoken(other) for other in ranking.tied)])
        values = listed([score.text(one.mean) for one in [best, *ranking.tied]])
        return f"{capital(names)} are tied for best: {score.name} {values} {_where(ranking)}, no measurable difference."
    return f"{capital(spoken(best))} is best: {reaches}, {lead}."


def _baselines(ranking: Ranking) -> list[Contender]:
    """Fine-tuned FedAvg and training alone: what anybody could use instead."""
    return [base for name in (FINE_TUNED, ALONE) if (base := ranking.first_of(name)) is not None]


def _amounts(gaps: Sequence[Difference], score: Score) -> str:
    """Differences in words: `1.4 and 2.0 points`."""
    return listed([*(score.number(abs(gap.mean)) for gap in gaps[:-1]), score.amount(gaps[-1].mean)])


def _lead(second: Contender, gap: Difference, score: Score) -> str:
    """How far the best is ahead of the next."""
    if gap.is_better:
        return f"{score.amount(gap.mean)} better than the next, {spoken(second)}"
    if gap.is_tie:
        return f"with no measurable difference from the next, {spoken(second)}"
    if not score.number(gap.mean).strip("0."):
        return f"the same as the next, {spoken(second)}"
    return f"{score.amount(gap.mean)} better than the next, {spoken(second)}, which may be chance: there is no interval"


def _where(ranking: Ranking) -> str:
    if any(one.clients for one in ranking.order):
        return "on the clients' own test samples"
    return "of the global model on all test samples"


# -- details -----------------------------------------------------------------------------------------------------------


def _details(ranking: Ranking) -> list[str]:
    best, score = ranking.best, ranking.score
    always = [*ranking.order[1:2], *_baselines(ranking), *filter(None, [ranking.first_of(FEDAVG)])]
    tied = [one for one in ranking.tied if one not in always]
    apart = [] if len(tied) > MANY_TIES else tied
    shown = {one.label: one for one in (*ranking.order[1:2], *apart, *always) if one is not best}
    found = [_against(best, one, ranking.behind[label], score) for label, one in shown.items()]
    if len(tied) > MANY_TIES:
        found.append(ties_sentence(ranking, tied))
    found += thrift_sentences(ranking)
    if (alone := _alone_sentence(ranking)) is not None:
        found.append(alone)
    return [
        *found,
        *(
            f"{capital(one.label)}, with all samples in one place, which no federation has: "
            f"{score.name} {score.text(one.mean)}."
            for one in ranking.references
        ),
    ]


def _against(best: Contender, base: Contender, gap: Difference, score: Score) -> str:
    name = f"{capital(spoken(base))} has {score.text(base.mean)}: "
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
