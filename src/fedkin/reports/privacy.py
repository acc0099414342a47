"""What runs have spent of their clients' privacy, alone and together."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedkin.engine.accounting import Release, epsilon_of
from fedkin.errors import BadInput
from fedkin.experiments.results import COMPARISON_FILE
from fedkin.files import json_object
from fedkin.reports.run import Run
from fedkin.types import Record


def spent_by(summaries: Sequence[Record]) -> Record:
    """ε of all runs on the same data together, from their summaries; empty if none has noise.

    Releases of all runs are composed: whoever chooses among runs has seen all of them. δ is the largest of the runs'.
    """
    private = [one["privacy"] for one in summaries if isinstance(one.get("privacy"), dict)]
    if not private:
        return {}
    releases = [Release(*release) for one in private for release in one["releases"]]
    delta = max(float(one["delta"]) for one in private)
    return {"epsilon": epsilon_of(releases, delta), "delta": delta, "runs": len(private)}


def spent_in(folders: Sequence[Path]) -> Record:
    """The same of all runs in folders, with a summary or not yet."""
    found = (json_object(file) for folder in folders for file in sorted(folder.glob("*/summary.json")))
    return spent_by([summary for summary in found if summary])


def epsilon_text(run: Run) -> str:
    """ε of one run, in short; empty if it has no noise."""
    known = run.summary.get("privacy")
    return f"{known['epsilon']:.3g}" if isinstance(known, dict) and "epsilon" in known else ""


def privacy_sentences(runs: Sequence[Run]) -> Iterator[str]:
    """What all runs of a federation have spent together, with the trials of a comparison."""
    private = [run for run in runs if epsilon_text(run)]
    if not private:
        return
    whole = (json_object(private[0].folder.parent / COMPARISON_FILE) or {}).get("privacy")
    try:
        whole = whole if isinstance(whole, dict) else spent_by([run.summary for run in private])
    except (BadInput, TypeError, ValueError, KeyError):  # without Opacus, or with a damaged summary
        return
    if whole["runs"] > 1:
        alone = sorted({float(epsilon_text(run)) for run in private})
        each = f"{alone[0]:g}" if len(alone) == 1 else f"{alone[0]:g} to {alone[-1]:g}"
        yield (
            f"The {whole['runs']} runs with noise on these data have ε = {whole['epsilon']:.3g} together, at "
            f"δ = {whole['delta']:g}; each alone {each}. A choice among them spends what all of them spend, and the "
            "validation samples by which it is made are not protected. Set privacy.runs to plan for all of them."
        )
