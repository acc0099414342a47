"""Words of the answer that several sentences need: names of methods, and intervals."""

from fedkin.algorithms import label_of
from fedkin.reports.answer.contenders import Contender
from fedkin.reports.answer.intervals import LEVEL, Difference
from fedkin.reports.answer.ranking import SPOKEN_BASELINES
from fedkin.reports.answer.scores import Score

NO_INTERVAL = "no interval: there is one seed and no result of single clients"


def spoken(contender: Contender) -> str:
    """The name of a method in a sentence; baselines in words."""
    plain_label = contender.label == label_of(contender.algorithm)
    return (
        SPOKEN_BASELINES[contender.algorithm]
        if plain_label and contender.algorithm in SPOKEN_BASELINES
        else contender.label
    )


def capital(text: str) -> str:
    """The beginning of a sentence; names such as pFedMe stay as they are.

    >>> capital("training alone"), capital("pFedMe")
    ('Training alone', 'pFedMe')
    """
    first = text.partition(" ")[0]
    return text if first != first.lower() else text[:1].upper() + text[1:]


def ends_text(gap: Difference, score: Score) -> str:
    """The ends of an interval: `2.9 to 9.8 points`."""
    return f"{score.number(gap.low)} to {score.number(gap.high)}{score.points}"


def interval_text(gap: Difference, score: Score) -> str:
    """An interval in words: `95 % interval 2.9 to 9.8 points, paired over 24 clients`."""
    if not gap.has_interval:
        return NO_INTERVAL
    return f"{100 * LEVEL:.0f} % interval {ends_text(gap, score)}, paired over {gap.pairs} {gap.over}"
