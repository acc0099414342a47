"""Tables of β by local optimizer: the accuracy of the global model, with the step size chosen on validation samples."""

from collections.abc import Mapping, Sequence

from fedkin.paper.controls import interval_cell
from fedkin.paper.reproduce import Context, Output
from fedkin.reports.run import Run
from fedkin.reports.tables import Cell, Table, text_cell


def momentum_tables(context: Context) -> Output:
    """A row for each optimizer and β: accuracy over the seeds, and the difference from β = 1, taken per seed.

    Once with the step size that is best for each β, and once with the one that is best for β = 1.
    """
    rows = []
    for part in context.reproduction.parts:
        runs = [run for run in context.runs(part) if run.status != "running"]
        found = chosen_by_beta(runs)
        usual = found.get(1.0, {})
        for beta, by_seed in found.items():
            steps = sorted({_step_size(run) for run in by_seed.values()})
            same = {_seed(run): run for run in runs if _beta(run) == beta and _is_with_step_of(run, usual)}
            rows.append(
                (
                    text_cell(part.label),
                    Cell(f"{beta:g}", beta),
                    text_cell(", ".join(f"{step:g}" for step in steps)),
                    interval_cell([100 * run.final_value for run in by_seed.values()], "{:.2f}"),
                    Cell("") if beta == 1 else interval_cell(_gaps(by_seed, usual), "{:+.2f}"),
                    Cell("") if beta == 1 else interval_cell(_gaps(same, usual), "{:+.2f}"),
                )
            )
    columns = ("local steps", "β", "γ chosen", "accuracy, %", "minus β = 1, points", "at the γ of β = 1, points")
    table = Table("", columns, tuple(rows))
    notes = (
        "β = 1 is FedAvg. Of each β and seed it is the run with the lowest loss on the clients' validation samples.",
        "± is half the width of a 95 % confidence interval over the seeds. Differences are taken per seed.",
    )
    return Output(tables=(table,), spreadsheet=table, notes=notes)


def chosen_by_beta(runs: Sequence[Run]) -> dict[float, dict[int, Run]]:
    """For each β, the largest first, and each seed the run whose global model has the lowest validation loss."""
    found: dict[float, dict[int, Run]] = {}
    for run in runs:
        best = found.setdefault(_beta(run), {}).get(_seed(run))
        if run.status == "finished" and (best is None or _validation(run) < _validation(best)):
            found[_beta(run)][_seed(run)] = run
    return dict(sorted(found.items(), reverse=True))


def _beta(run: Run) -> float:
    return float(run.config["algorithm"].get("beta", 1.0))


def _seed(run: Run) -> int:
    return int(run.config["seed"])


def _step_size(run: Run) -> float:
    return float(run.config["local"]["step_size"])


def _is_with_step_of(run: Run, others: Mapping[int, Run]) -> bool:
    """Whether a run has the step size of the other one with its seed."""
    return _seed(run) in others and _step_size(run) == _step_size(others[_seed(run)])


def _validation(run: Run) -> float:
    return float(run.series("validation_loss")[-1])


def _gaps(ours: Mapping[int, Run], theirs: Mapping[int, Run]) -> list[float]:
    return [100 * (run.final_value - theirs[seed].final_value) for seed, run in ours.items() if seed in theirs]
