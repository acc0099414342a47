"""The command `fedkin`."""

import errno
from pathlib import Path
from typing import Annotated, Any

import click
import typer
import typer.core

from fedkin.errors import TOO_LARGE, BadInput, is_out_of_memory
from fedkin.files import writable_file, writable_folder
from fedkin.output import console, prepare_streams, say_error, show_warnings


class Commands(typer.core.TyperGroup):
    """All commands. Whatever a user can mend is one sentence and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BadInput as error:
            say_error(str(error))
        except KeyboardInterrupt:
            continues = ctx.invoked_subcommand in ("run", "reproduce")
            say_error(f"stopped{'; the same command continues the runs' if continues else ''}")
            raise typer.Exit(130) from None
        except OSError as error:
            say_error(_in_a_sentence(error))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            say_error(TOO_LARGE)
        raise typer.Exit(2)


def _in_a_sentence(error: OSError) -> str:
    """What is wrong with a file, and the way out."""
    where = f"{error.filename}: " if error.filename is not None else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where}the disk is full; what was written before is sound: free some space and run the command again"
    if error.errno == errno.EISDIR:
        return f"{where}there is a folder in the place of a file: remove it and run the command again"
    return f"{where}{error.strerror or error}: check the path, or choose another folder with --out"


app = typer.Typer(
    cls=Commands,
    help="Federated learning for clients whose data differ.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

FileArgument = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="Experiment as TOML; none: the embedded default.")
]
SetOption = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the file; repeatable.")
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", envvar="FEDKIN_DATA", help="Where NAME.npz data files lie or are put."),
]
OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where results are put.")]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Do runs again that are already there.")]


@app.command()
def run(
    file: FileArgument = None,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    out: OutOption = Path("results"),
    data: DataOption = None,
    fresh: FreshOption = False,
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
    file: FileArgument = None,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    out: OutOption = Path("results"),
    data: DataOption = None,
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
    writable_folder(out or folder)
    for name in dict.fromkeys(r.experiment for r in runs):
        for table in reports.shown_tables([r for r in runs if r.experiment == name]):
            console().print(table.rich())
    for path in reports.write(folder, out):
        console().print(f"wrote {path}", soft_wrap=True)


@app.command()
def kin(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or of an experiment.")],
    name: Annotated[
        str | None, typer.Option("--run", metavar="NAME", help="Only this run; none: all runs with kin.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where to put the pictures; none: the run's folder.")
    ] = None,
) -> None:
    """Show who is kin in a run, and what each client gains from it."""
    from fedkin.reports.kin_text import kin_views

    if out is not None:
        writable_folder(out)
    for view in kin_views(folder, name, out):
        console().print(view, soft_wrap=True)


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

    for option, path in (("--json", json), ("--markdown", markdown)):
        if path is not None:
            writable_file(path, option)
    if figure is not None:
        writable_folder(figure.parent, "--figure")
    options = Options(repeat, quick=quick, **({} if threads is None else {"threads": threads}))
    run_benchmarks(what or [], options, console(), json=json, markdown=markdown, figure=figure)


@app.command()
def theory(
    file: FileArgument = None,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    out: OutOption = Path("results"),
    data: DataOption = None,
    quadratic: Annotated[
        bool, typer.Option("--quadratic", help="Instead: quadratics, whose constants are known exactly.")
    ] = False,
) -> None:
    """Run the algorithms at the theorems' step sizes and draw the measured gap under its bounds."""
    from fedkin.experiments import progress
    from fedkin.paper import theory_report

    if quadratic and (file is not None or settings):
        raise BadInput("--quadratic has a federation of its own: give it no file and no settings")
    writable_folder(out)
    with progress.shown(console()) as listener:
        reports = (
            [theory_report.quadratic_report(out, listener=listener)]
            if quadratic
            else theory_report.softmax_report(file, overrides=settings, out=out, data=data, listener=listener)
        )
    for found in reports:
        console().print(f"{found.title}\n{found.facts}\n", soft_wrap=True)
        for table in found.tables:
            console().print(table.rich())
        for path in found.files:
            console().print(f"wrote {path}", soft_wrap=True)


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="What to reproduce; none: list what there is.")
    ] = None,
    out: OutOption = Path("results/reproduce"),
    data: DataOption = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version on the embedded data: for trying out, not for numbers.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PART", help="Carry out this part only; repeatable.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Show what is there; carry out nothing.")] = False,
    fresh: FreshOption = False,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Rewrite its section in a Markdown page.")
    ] = None,
) -> None:
    """Reproduce the paper's tables and figures, with its values beside ours. Finished runs are kept."""
    from fedkin.experiments import progress
    from fedkin.paper import reproduce as reproductions

    if name is None:
        for known in reproductions.reproduction_names():
            console().print(f"{known:13} {reproductions.read_reproduction(known).title}")
        console().print("\nRun one: fedkin reproduce NAME --data DIR. The theorems: fedkin theory.")
        return
    writable_folder(out)
    if page is not None:
        writable_file(page, "--page")
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
        console().print(note, soft_wrap=True)
    for path in shown.files:
        console().print(f"wrote {path}", soft_wrap=True)


def main() -> None:
    """Run the command."""
    prepare_streams()
    show_warnings()
    app()
