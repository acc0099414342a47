"""The command `fedkin`."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedkin.errors import BadInput

app = typer.Typer(
    help="Federated learning for clients whose data differ.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

File = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Experiment as TOML; none: the embedded default.")]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the file; repeatable.")]
Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", envvar="FEDKIN_DATA", help="Where NAME.npz data files lie or are put."),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where results are put.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Do runs again that are already there.")]


@app.command()
def run(
    file: File = None,
    settings: Set = [],  # noqa: B006 - typer copies it
    out: Out = Path("results"),
    data: Data = None,
    fresh: Fresh = False,
) -> None:
    """Carry out an experiment. Finished runs are kept, interrupted ones continue."""
    from fedkin.experiments import progress
    from fedkin.experiments import run as experiment

    with progress.shown(console()) as listener:
        results = experiment.run(file, overrides=settings, out=out, data=data, listener=listener, fresh=fresh)
    folder = results[0].folder
    assert folder is not None
    console().print(f"Results are in {folder.parent}. Compare them: fedkin report {folder.parent}", soft_wrap=True)


@app.command()
def graph(
    file: File = None,
    settings: Set = [],  # noqa: B006 - typer copies it
    out: Out = Path("results"),
    data: Data = None,
) -> None:
    """Show a federation before training: sizes, class mix, misalignment, spectrum."""
    from fedkin.experiments import progress
    from fedkin.reports.overview import views

    with progress.shown(console()) as listener:
        shown = views(file, overrides=settings, out=out, data=data, listener=listener)
    for view in shown:
        console().print(view)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with results.")] = Path("results"),
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where to put the files; none: DIR.")] = None,
) -> None:
    """Compare runs: a table, and the curves of loss and accuracy."""
    from fedkin.reports import report as reports
    from fedkin.reports.runs import collect

    runs = collect(folder)
    for name in dict.fromkeys(r.experiment for r in runs):
        console().print(reports.table([r for r in runs if r.experiment == name]).rich())
    for path in reports.write(folder, out):
        console().print(f"wrote {path}", soft_wrap=True, highlight=False)


@app.command()
def bench(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORKLOAD | speed | threads | growth] …", help="None: the speed of all workloads."),
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", help="Turns of each competitor.")] = 7,
    threads: Annotated[int | None, typer.Option("--threads", metavar="N", help="None: as many as cores.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few clients: for trying out, not for numbers.")] = False,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers.")] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write the tables into their places in a page.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", metavar="STEM", help="Draw growth: STEM.png and STEM.pdf.")
    ] = None,
) -> None:
    """Measure the engine, hand-written loops and the machine's limit."""
    from fedkin.bench.command import run_benchmarks
    from fedkin.bench.timing import Options

    options = Options(repeat, quick=quick, **({} if threads is None else {"threads": threads}))
    run_benchmarks(what or [], options, console(), json=json, markdown=markdown, figure=figure)


@app.command()
def theory(
    file: File = None,
    settings: Set = [],  # noqa: B006 - typer copies it
    out: Out = Path("results"),
    data: Data = None,
    quadratic: Annotated[
        bool, typer.Option("--quadratic", help="Instead: quadratics, whose constants are known exactly.")
    ] = False,
) -> None:
    """Run the algorithms at the theorems' step sizes and draw the measured gap under its bounds."""
    from fedkin.experiments import progress
    from fedkin.paper import theory_report

    if quadratic and (file is not None or settings):
        raise BadInput("--quadratic has a federation of its own: give it no file and no settings")
    with progress.shown(console()) as listener:
        reports = (
            [theory_report.quadratic_report(out, listener=listener)]
            if quadratic
            else theory_report.softmax_report(file, overrides=settings, out=out, data=data, listener=listener)
        )
    for found in reports:
        console().print(f"{found.title}\n{found.facts}\n", markup=False, highlight=False, soft_wrap=True)
        for table in found.tables:
            console().print(table.rich())
        for path in found.files:
            console().print(f"wrote {path}", soft_wrap=True, highlight=False)


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="What to reproduce; none: list what there is.")
    ] = None,
    out: Out = Path("results/reproduce"),
    data: Data = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version on the embedded data: for trying out, not for numbers.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PART", help="Carry out this part only; repeatable.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Show what is there; carry out nothing.")] = False,
    fresh: Fresh = False,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Rewrite its section in a Markdown page.")
    ] = None,
) -> None:
    """Reproduce the paper's tables and figures, with its values beside ours. Finished runs are kept."""
    from fedkin.experiments import progress
    from fedkin.paper import reproduce as reproductions

    if name is None:
        for known in reproductions.reproduction_names():
            console().print(f"{known:13} {reproductions.read_reproduction(known).title}", markup=False, highlight=False)
        console().print("\nRun one: fedkin reproduce NAME --data DIR. The theorems: fedkin theory.", highlight=False)
        return
    with progress.shown(console()) as listener:
        shown = reproductions.reproduce(
            name,
            out=out,
            data=data,
            quick=quick,
            only=only or [],
            run=not show,
            fresh=fresh,
            page=page,
            listener=listener,
        )
    for table in shown.tables:
        console().print(table.rich())
    for note in shown.notes:
        console().print(note, markup=False, highlight=False, soft_wrap=True)
    for path in shown.files:
        console().print(f"wrote {path}", soft_wrap=True, highlight=False)


def console() -> Console:
    """Standard output, wide enough for a table when it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 160)


def main() -> None:
    """Run the command; bad input is one sentence and exit code 2."""
    try:
        app()
    except BadInput as error:
        Console(stderr=True).print(f"fedkin: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("\nstopped; runs continue with the same command")
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has gone (`fedkin … | head`): nothing is wrong, and nothing more can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
