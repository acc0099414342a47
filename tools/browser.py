"""Pages in a real browser: for their tests, and for their pictures in the documentation.

`python -m browser REPORT.html PICTURE.png` makes a picture of the top of a report, down to the costs.
"""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str | None:
    """The browser: `FEDKIN_BROWSER`, or a Chromium on the path."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("FEDKIN_BROWSER") or next(filter(None, map(shutil.which, names)), None)


NO_BROWSER = "no Chromium on this machine: apt-get install chromium, or set FEDKIN_BROWSER"


@contextmanager
def launched() -> Iterator[Any]:
    """The browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Any, place: Path | str, **context: Any) -> Iterator[Any]:
    """A page in the browser, drawn. What it says to the console, errors and requests are in `page.said`."""
    address = place.absolute().as_uri() if isinstance(place, Path) else place
    said: list[str] = []
    page: Any = browser.new_page(**context)
    page.said = said
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("request", lambda request: said.append(request.url) if request.url != address else None)
    page.goto(address)
    drawn(page)
    yield page
    page.close()


def drawn(page: Any) -> None:
    """Wait until all charts are drawn."""
    until(page, "document.documentElement.dataset.ready === 'yes'")


def until(page: Any, condition: str, seconds: float = 60.0) -> None:
    """Wait for a condition. (Playwright's own waiting needs `eval`, which the page forbids.)"""
    from playwright.sync_api import Error

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(Error):  # the page is being loaded
            if page.evaluate(condition):
                return
        page.wait_for_timeout(50)
    raise AssertionError(f"not within {seconds:g} s: {condition}; the page says {page.said}")


def picture(browser: Any, report: Path, target: Path, width: int = 1180) -> None:
    """The top of a report, as wide as a browser's window: the answer and the tables of its first section."""
    with opened(browser, report, viewport={"width": width, "height": 900}) as page:
        bottom = "document.querySelectorAll('section table')[1].getBoundingClientRect().bottom + window.scrollY"
        height = page.evaluate(bottom) + 24
        page.screenshot(path=target, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})


if __name__ == "__main__":
    if chromium() is None:
        sys.exit(NO_BROWSER)
    with launched() as running:
        picture(running, Path(sys.argv[1]), Path(sys.argv[2]))
