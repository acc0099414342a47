"""Arguments and options that commands share."""

from pathlib import Path
from typing import Annotated

import typer

FileArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FILE | DIR | NAME]",
        help="An experiment as TOML; or data: a folder with a file for each client, a table, an npz file, the name of "
        "a data set. None: the embedded experiment.",
    ),
]
ExperimentArgument = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="Experiment as TOML; none: the embedded default.")
]
TargetOption = Annotated[
    str | None, typer.Option("--target", metavar="COLUMN", help="Of data: the column to be predicted.")
]
ClientOption = Annotated[
    str | None, typer.Option("--client", metavar="COLUMN", help="Of one table: the column that names the client.")
]
DropOption = Annotated[
    str | None, typer.Option("--drop", metavar="COLUMNS", help="Of tables: columns to leave out: 'a, b'.")
]
SetOption = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the file; repeatable.")
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", envvar="FEDKIN_DATA", help="Where NAME.npz files lie or are put."),
]
OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where results are put.")]
OnOption = Annotated[
    str,
    typer.Option("--on", metavar="WHERE", help="On all cores, in this process, or on Ray: ray, ADDRESS."),
]
PageOption = Annotated[Path | None, typer.Option("--page", metavar="FILE", help="Rewrite its section in a page.")]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Do runs again that are already there.")]


def given(**options: str | None) -> dict[str, str]:
    """The options that were given."""
    return {key: value for key, value in options.items() if value is not None}
