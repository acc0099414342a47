"""The command `fedkin`."""

import errno
import shlex
from inspect import unwrap
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import click
import typer
import typer.core
from typer.models import ArgumentInfo

from fedkin.errors import TOO_LARGE, BadInput, is_out_of_memory
from fedkin.files import writable_file, writable_folder
from fedkin.options import (
    ClientOption,
    DataOption,
    DropOption,
    ExperimentArgument,
    FileArgument,
    FreshOption,
    OnOption,
    OutOption,
    PageOption,
    SetOption,
    TargetOption,
    given,
)
from fedkin.output import console, prepare_streams, say_error, show_messages, show_warnings


class Commands(typer.core.TyperGroup):
    """All commands. Whatever a user can mend is one sentence and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BadInput as error:
            say_error(str(error))
        except KeyboardInterrupt:
            continues = ctx.invoked_subcommand in ("run", "compare", "reproduce")
            say_error(f"stopped{'; the same command continues the runs' if continues else ''}")
            raise typer.Exit(130) from None
        except OSError as error:
            say_error(_in_a_sentence(error))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            say_error(TOO_LARGE)
        raise typer.Exit(2)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        return command and _with_help_of_arguments(command)


def _with_help_of_arguments(command: click.Command) -> click.Command:
    """Arguments with their help: newer versions of click set it to None after typer has set it."""
    hints = get_type_hints(unwrap(command.callback), include_extras=True) if command.callback else {}
    for parameter in command.params:
        if isinstance(parameter, typer.core.TyperArgument) and parameter.help is None:
            about = getattr(hints.get(parameter.name or ""), "__metadata__", ())
            parameter.help = next((one.help for one in about if isinstance(one, ArgumentInfo)), None)
    return command


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
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    from fedkin import __version__

    if wanted:
        console().print(f"fedkin {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options that come before the command."""


@app.command()
def run(
    file: FileArgument = None,
    target: TargetOption = None,
    client: ClientOption = None,
    drop: DropOption = None,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    out: OutOption = Path("results"),
    data: DataOption = None,
    fresh: FreshOption = False,
    on: OnOption = "process",
    track: Annotated[
        list[str], typer.Option("--track", metavar="NAME", help="Also to tensorboard or mlflow; repeatable.")
    ] = [],  # noqa: B006 - typer copies it
) -> None:
    """Carry out an experiment. Finished runs are kept, interrupted ones continue."""
    from fedkin.experiments import experiment_of, progress, tracking
    from fedkin.experiments import run as experiment

    source = experiment_of(file, given(target=target, client=client, drop=drop))
    with progress.shown(console()) as bars, tracking.tracked(track, bars) as listener:
        results = experiment.run(source, overrides=settings, out=out, data=data, listener=listener, fresh=fresh, on=on)
    folder = results[0].folder
    assert folder is not None
    console().print(f"Results are in {folder.parent}. Compare them: fedkin report {folder.parent}", soft_wrap=True)


@app.command()
def compare(
    file: FileArgument = None,
    target: TargetOption = None,
    client: ClientOption = None,
    drop: DropOption = None,
    algorithms: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm", metavar="NAME", help="Compare this one; repeatable. None: those of FILE, or a dozen."
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option("--budget", metavar="NAME", help="quick, standard or thorough: trials and seeds per method.")
    ] = "standard",
    trials: Annotated[int | None, typer.Option("--trials", metavar="N", help="Settings tried per method.")] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", metavar="N", help="Fresh seeds per method.")] = None,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    out: OutOption = Path("results"),
    data: DataOption = None,
    fresh: FreshOption = False,
    on: OnOption = "cores",
    page: PageOption = None,
) -> None:
    """Find out which method is best on your clients: all tuned alike on validation samples, then on fresh seeds."""
    from fedkin import arena
    from fedkin.arena.phases import phases_shown
    from fedkin.experiments import experiment_of
    from fedkin.reports import report as reports

    source = experiment_of(file, given(target=target, client=client, drop=drop))
    writable_folder(out)
    writable_file(page, "--page")
    with phases_shown(console()) as show:
        found = arena.compare(
            source, algorithms=algorithms or [], budget=arena.budget_of(budget, trials, seeds), overrides=settings,
            out=out, data=data, show=show, fresh=fresh, on=on,
        )  # fmt: skip
    for view in reports.report_views(found.folder, console().width):
        console().print(view)
    section = reports.write_section(found.folder, page, f"fedkin compare {file.name if file else ''}".strip())
    for path in (*reports.write(found.folder), *section):
        console().print(f"wrote {path}", soft_wrap=True)
    if (best := found.best_run) is not None:
        models, each = ("The models of the clients", " --all") if best.has_own_models else ("The model", "")
        words = f"{models}, by {best.method}: fedkin export {shlex.quote(str(found.folder / best.folder.name))}{each}"
        console().print(words, markup=False, highlight=False, soft_wrap=True)


@app.command("data")
def show_data(
    source: FileArgument = None,
    target: TargetOption = None,
    client: ClientOption = None,
    drop: DropOption = None,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = None,
) -> None:
    """Show what was understood of data before anything is trained: clients, target, columns."""
    from fedkin.reports.data_view import data_views

    for view in data_views(source, given(target=target, client=client, drop=drop), overrides=settings, data=data):
        console().print(view)


@app.command()
def graph(
    file: FileArgument = None,
    target: TargetOption = None,
    client: ClientOption = None,
    drop: DropOption = None,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    out: OutOption = Path("results"),
    data: DataOption = None,
) -> None:
    """Show a federation before training: sizes, class mix, misalignment, spectrum."""
    from fedkin.experiments import experiment_of, progress
    from fedkin.reports.overview import views

    source = experiment_of(file, given(target=target, client=client, drop=drop))
    with progress.shown(console()) as listener:
        shown = views(source, overrides=settings, out=out, data=data, listener=listener)
    for view in shown:
        console().print(view)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with results.")] = Path("results"),
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where to put the files; none: DIR.")] = None,
) -> None:
    """Compare runs: the answer in words, tables, figures, and one page with all of it (report.html)."""
    from fedkin.reports import report as reports
    from fedkin.reports.page.document import HOW, can_make_page

    views = reports.report_views(folder, console().width)
    writable_folder(out or folder)
    for view in views:
        console().print(view)
    for path in reports.write(folder, out):
        console().print(f"wrote {path}", soft_wrap=True)
    if not can_make_page():
        console().print(f"no report.html: {HOW}", soft_wrap=True)


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with results.")] = Path("results"),
    port: Annotated[int, typer.Option("--port", metavar="N", help="Port on this machine; 0: any.")] = 0,
) -> None:
    """Serve the page of `fedkin report` while runs go on, to this machine only. Ctrl-C ends it."""
    from fedkin.reports.page.server import PageServer, serve_until_stopped

    serve_until_stopped(PageServer(folder, port), lambda words: console().print(words, soft_wrap=True))


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
def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    client: Annotated[
        str | None, typer.Option("--client", metavar="NAME", help="This client's own model; none: the global model.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="The own models of all clients, a file each.")] = False,
    layout: Annotated[str, typer.Option("--format", metavar="FORMAT", help="safetensors, pt or onnx.")] = "safetensors",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="PATH", help="File, or folder with --all; none: RUN/export.")
    ] = None,
) -> None:
    """Write a trained model as a file that other programs load."""
    from fedkin.experiments.exporting import export_run

    for line in export_run(folder, client, layout, out, every=every):
        console().print(line, soft_wrap=True)


@app.command()
def bench(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKLOAD | speed | threads | growth | kin | evaluation | matrix | busy] …",
            help="None: the speed of all workloads. After matrix, words choose a part of it: softmax shuffled B32 …",
        ),
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", help="Turns of each competitor.")] = 7,
    threads: Annotated[int | None, typer.Option("--threads", metavar="N", help="None: as many as cores.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few clients: for trying out, not for numbers.")] = False,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers.")] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write the tables into their places in a page.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", metavar="STEM", help="Draw growth or the matrix: STEM.png and STEM.pdf.")
    ] = None,
) -> None:
    """Measure the engine, hand-written loops and the machine's limit."""
    from fedkin.bench.command import run_benchmarks
    from fedkin.bench.timing import Options

    for option, path in (("--json", json), ("--markdown", markdown)):
        writable_file(path, option)
    if figure is not None:
        writable_folder(figure.parent, "--figure")
    options = Options(repeat, quick=quick) if threads is None else Options(repeat, threads, quick)
    run_benchmarks(what or [], options, console(), json=json, markdown=markdown, figure=figure)


@app.command()
def theory(
    file: ExperimentArgument = None,
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
            console().print(table)
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
    settings: SetOption = [],  # noqa: B006 - typer copies it
    show: Annotated[bool, typer.Option("--show", help="Show what is there; carry out nothing.")] = False,
    fresh: FreshOption = False,
    on: OnOption = "process",
    page: PageOption = None,
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
    writable_file(page, "--page")
    with progress.shown(console()) as listener:
        shown = reproductions.reproduce(
            name, out=out, data=data, quick=quick, only=only or [], overrides=settings,
            run=not show, fresh=fresh, page=page, listener=listener, on=on,
        )  # fmt: skip
    for table in shown.tables:
        console().print(table)
    for note in shown.notes:
        console().print(note, soft_wrap=True)
    for path in shown.files:
        console().print(f"wrote {path}", soft_wrap=True)


def main() -> None:
    """Run the command. The installed command calls it through `fedkin.__main__`."""
    prepare_streams()
    show_warnings()
    show_messages()
    app(prog_name="fedkin")
