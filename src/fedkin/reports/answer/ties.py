"""Methods that cannot be told apart from the best: who they are, and which of them costs least."""

import math
from collections.abc import Sequence

from fedkin.reports.answer.contenders import Contender
from fedkin.reports.answer.costs import MEGABYTE, total
from fedkin.reports.answer.intervals import LEVEL
from fedkin.reports.answer.ranking import FEDAVG, Ranking
from fedkin.reports.answer.words import ends_text, spoken
from fedkin.reports.labels import listed
from fedkin.reports.selection import ALONE

EQUAL = 1.005  # amounts of data that differ by less are called equal


def ties_sentence(ranking: Ranking, tied: Sequence[Contender]) -> str:
    """Several methods without a measurable difference from the best, in one sentence."""
    score, gaps = ranking.score, [ranking.behind[one.label] for one in tied]
    each = [
        f"{spoken(one)} with {score.text(one.mean)} ({ends_text(gap, score)})"
        for one, gap in zip(tied, gaps, strict=True)
    ]
    over = listed(list(dict.fromkeys(f"{gap.pairs} {gap.over}" for gap in gaps)))
    return (
        f"No measurable difference from {spoken(ranking.best)}: {', '.join(each)}; {100 * LEVEL:.0f} % intervals, "
        f"paired over {over}."
    )


def thrift_sentences(ranking: Ranking) -> list[str]:
    """What speaks for one of the methods that cannot be told apart: it sends less, or is the simplest."""
    equals = [ranking.best, *ranking.tied]
    if len(equals) == 1 or ranking.best.algorithm == ALONE:  # which is the simplest, and sends nothing
        return []
    found = []
    federated = [one for one in equals if one.algorithm != ALONE]
    if len(federated) < len(equals):
        found.append(
            "Training alone is among the methods that cannot be told apart: whether a federation pays is not decided "
            "here."
        )
    sent = {one.label: amount_sent(one) for one in federated}
    if len(federated) < 2 or any(math.isnan(amount) for amount in sent.values()):
        return found
    least = min(sent.values())
    cheapest = [one for one in federated if sent[one.label] <= EQUAL * least]
    amount = f"{least:.3g} MB of a client in all rounds"
    what = f"Of the {len(federated)} federated methods that cannot be told apart"
    simplest = next((one for one in cheapest if one.algorithm == FEDAVG), None)
    if simplest is not None:
        found.append(f"{what}, {spoken(simplest)} is the simplest, and none sends less: {amount}.")
    elif len(cheapest) < len(federated):
        names = listed([spoken(one) for one in cheapest])
        found.append(f"{what}, {names} {'sends' if len(cheapest) == 1 else 'send'} least: {amount}.")
    return found


def amount_sent(one: Contender) -> float:
    """Megabytes of a client, both directions, in all rounds: the mean over runs; NaN if they were not recorded."""
    each = [(total(run, "bytes_down", math.inf) + total(run, "bytes_up", math.inf)) / MEGABYTE for run in one.runs]
    return sum(each) / len(each) if each else math.nan
