"""What a comparison has found: each method after its trials, and the answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedkin.arena.budget import Budget
from fedkin.arena.entrants import Entrant
from fedkin.arena.question import Question
from fedkin.arena.trials import Trial, edges, rungs_of
from fedkin.experiments.results import COMPARISON_FILE, Result
from fedkin.files import as_json, write_atomically
from fedkin.reports.answer.contenders import field_of
from fedkin.reports.answer.sentences import Answer, answer_of
from fedkin.reports.report import conclusion_html, conclusion_text
from fedkin.reports.run import Run
from fedkin.reports.runs import collect
from fedkin.types import Record

LINE_WIDTH = 100  # characters of a line of the answer, where nobody knows how wide the place is


@dataclass(frozen=True)
class Entry:
    """A method after its trials.

    trials  all of them
    best    the one with the lowest loss on validation samples; None if all have diverged
    runs    names of the runs of the best on fresh seeds
    """

    method: Entrant
    trials: Sequence[Trial]
    best: Trial | None
    runs: Sequence[str] = ()

    def record(self) -> Record:
        """For `comparison.json`."""
        best = self.best
        return {
            "method": self.method.label,
            "algorithm": self.method.algorithm,
            "trials": len(self.trials),
            "diverged": sum(one.diverged for one in self.trials),
            "searched": {_full(name): str(where) for name, where in self.method.search.items()},
            "chosen": {_full(name): value for name, value in best.settings.items()} if best else None,
            "edges": {_full(name): end for name, end in edges(self.method.search, self.trials, best).items()}
            if best
            else {},
            "validation_loss": best.losses[max(best.losses)] if best else None,
            "runs": list(self.runs),
        }


def _full(name: str) -> str:
    """A setting with its section."""
    return name if "." in name else f"algorithm.{name}"


@dataclass(frozen=True)
class Comparison:
    """What `compare` has found.

    folder   of the runs on fresh seeds, for `fedkin report`
    entries  the methods with their trials
    results  the runs on fresh seeds
    """

    folder: Path
    entries: Sequence[Entry]
    results: Sequence[Result]

    @property
    def answer(self) -> Answer:
        """The answer: `headline`, `details` and `cautions`, and the numbers behind them."""
        return answer_of(field_of(collect(self.folder)))

    @property
    def best_run(self) -> Run | None:
        """The run of the best method on the first of the fresh seeds; None if no run has finished."""
        ranking = self.answer.ranking
        return ranking.best.runs[0] if ranking is not None else None

    def __str__(self) -> str:
        return conclusion_text(collect(self.folder), width=LINE_WIDTH)

    def __repr__(self) -> str:
        return f"Comparison({self.folder}: {self.answer.headline})"

    def _repr_html_(self) -> str:
        return conclusion_html(collect(self.folder))


def write_comparison(
    folder: Path,
    question: Question,
    entries: Sequence[Entry],
    budget: Budget,
    spent: Mapping[str, object] | None = None,
) -> None:
    """Write `comparison.json`, which reports read.

    spent  what all runs together have spent of the clients' privacy
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "trials": budget.trials,
        "seeds": budget.seeds,
        "rounds": question.rounds,
        "judged_after": rungs_of(question.rounds),
        "tuned_on_seed": question.seed,
        "methods": [entry.record() for entry in entries],
        "left_out": dict(question.left_out),
        **({"privacy": spent} if spent else {}),
    }
    write_atomically(folder / COMPARISON_FILE, as_json(record, indent=1).encode())
