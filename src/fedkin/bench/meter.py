"""Progress of a benchmark: a live bar on a terminal, a line every few seconds elsewhere."""

import math
import time
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Meter:
    """Shows what is being measured, and an estimate of the remaining time.

    total     the estimated seconds at the reference rate, in which progress is counted
    expected  the estimated seconds on this machine
    """

    def __init__(self, console: Console, total: float, expected: float, every: float = 5.0) -> None:
        self.console, self.total, self.expected, self.every = console, total, expected, every
        self.done, self.began = 0.0, time.monotonic()
        self.last = self.began
        self.bar = Progress(
            SpinnerColumn(), BarColumn(bar_width=30), TextColumn("{task.description}"), TimeElapsedColumn(),
            console=console, transient=True,
        )  # fmt: skip
        self.task = self.bar.add_task("", total=total)

    def __enter__(self) -> None:
        # in whole minutes: it is a rough estimate
        long = f"about {math.ceil(self.expected / 60)} minutes" if self.expected > 60 else "less than a minute"
        self.console.print(f"This takes {long}.", highlight=False)
        if self.console.is_terminal:
            self.bar.start()

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def notify(self, what: str) -> None:
        """Show what is being done."""
        text = f"{what}{self._left()}"
        now = time.monotonic()
        if self.console.is_terminal:
            self.bar.update(self.task, description=text)
        elif now - self.last >= self.every:
            self.last = now
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def advance(self, seconds: float) -> None:
        """Add to the part of the total that is done."""
        self.done += seconds
        self.bar.update(self.task, completed=self.done)

    def _left(self) -> str:
        if self.done == 0:
            return ""
        elapsed = time.monotonic() - self.began
        left = max(0.0, elapsed / self.done * (self.total - self.done))
        return f" ({timedelta(seconds=round(left))} left)"
