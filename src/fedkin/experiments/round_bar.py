"""A bar for a training in memory that takes longer."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedkin.output import error_console
from fedkin.types import Record

PATIENCE_SECONDS = 2.0


@contextmanager
def round_bar(label: str, rounds: int, shown: bool | None) -> Iterator[Callable[[Record], None]]:
    """A function that is told the record of every round.

    shown  True: a bar from the first round; None: on a terminal, once training takes longer than two seconds

    The bar is on standard error, so that what a script prints stays as it is.
    """
    console = error_console()
    if shown is False or (shown is None and not console.is_terminal):
        yield lambda record: None
        return
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeRemainingColumn(),
        console=console,
        transient=shown is None,
    )
    task = bar.add_task(label, total=rounds)
    began = time.monotonic()

    def tell(record: Record) -> None:
        if shown or time.monotonic() - began > PATIENCE_SECONDS:
            bar.start()  # nothing happens the second time
        bar.update(task, completed=record["round"] + 1)

    try:
        yield tell
    finally:
        bar.stop()
