"""The page in a real browser: it renders without a word to the console, and its controls work."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from browser import NO_BROWSER, chromium, launched, opened, picture
from fedkin.reports.page.document import page_of
from fedkin.reports.runs import collect
from page_runs import write_comparison_of
from test_page import EVIL

pytestmark = pytest.mark.skipif(chromium() is None, reason=NO_BROWSER)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as running:
        yield running


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "page.html"
    folder = write_comparison_of(file.parent, seeds=2, names=EVIL)
    file.write_text(page_of(collect(folder)), encoding="utf-8")
    return file


def marks(page: Any, chart: str) -> int:
    """The number of marks in a chart."""
    return int(page.locator(f"#part-0-{chart} svg .mark-line path, #part-0-{chart} svg .mark-symbol path").count())


def test_it_renders_in_silence_at_all_widths(browser: Any, page_file: Path) -> None:
    for width, scheme in ((1280, "light"), (700, "dark"), (360, "light")):
        with opened(browser, page_file, viewport={"width": width, "height": 800}, color_scheme=scheme) as page:
            assert page.said == []
            assert page.locator(".chart svg, .chart canvas").count() == 4
            assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing sticks out
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert ground == ("rgb(20, 23, 26)" if scheme == "dark" else "rgb(255, 255, 255)")
            assert page.locator(".headline").inner_text().startswith("Kin is best")


def test_boxes_filter_all_charts(browser: Any, page_file: Path) -> None:
    with opened(browser, page_file) as page:
        before = {chart: marks(page, chart) for chart in ("differences", "curves", "clients")}
        page.get_by_label("FedAvg", exact=True).uncheck()
        page.wait_for_timeout(300)
        after = {chart: marks(page, chart) for chart in before}
        assert before["clients"] == 4 * 6 * 2
        assert after["clients"] == 3 * 6 * 2
        assert before["differences"] - after["differences"] == 1
        assert after["curves"] < before["curves"]
        page.get_by_role("button", name="none").click()
        page.wait_for_timeout(300)
        assert marks(page, "clients") == 0
        page.get_by_role("button", name="all").click()
        page.wait_for_timeout(300)
        assert {chart: marks(page, chart) for chart in before} == before
        assert page.said == []


def test_selections_change_what_is_drawn(browser: Any, page_file: Path) -> None:
    with opened(browser, page_file) as page:

        def labels(chart: str) -> list[str]:
            found: list[str] = page.locator(f"#part-0-{chart} svg .role-axis-label text").all_text_contents()
            return found

        accuracy = labels("curves")
        assert any(text.endswith("%") for text in accuracy)
        page.locator("select[data-signal=quantity]").select_option("train_loss")
        page.wait_for_timeout(300)
        assert not any(text.endswith("%") for text in labels("curves"))
        rounds = labels("curves")
        page.locator("select[data-signal=axis]").select_option("megabytes")
        page.wait_for_timeout(300)
        assert labels("curves") != rounds
        gains = labels("gains")
        page.locator("select[data-signal=gainof]").select_option("FedAvg")
        page.wait_for_timeout(300)
        assert labels("gains") != gains
        assert page.said == []


def test_a_tooltip_has_the_name_of_the_client_as_text(browser: Any, page_file: Path) -> None:
    with opened(browser, page_file) as page:
        page.locator("#part-0-clients svg .mark-symbol path").first.hover(force=True)
        page.wait_for_selector("#vg-tooltip-element.visible")
        tip = page.locator("#vg-tooltip-element")
        assert "<script>alert(" in tip.inner_text()
        assert tip.locator("script").count() == 0
        assert page.said == []


def test_it_prints(browser: Any, page_file: Path) -> None:
    with opened(browser, page_file) as page:
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not page.get_by_role("button", name="none").is_visible()
        assert len(page.pdf()) > 10_000


def test_a_picture_ends_below_the_table_of_costs(browser: Any, page_file: Path, tmp_path: Path) -> None:
    """As wide as it is asked to be, and higher than wide windows are: both tables are in it, the charts are not."""
    picture(browser, page_file, tmp_path / "top.png", width=900)
    high, wide = plt.imread(tmp_path / "top.png").shape[:2]
    with opened(browser, page_file, viewport={"width": 900, "height": 900}) as page:
        costs = page.get_by_role("region", name="Means over seeds").bounding_box()
        legend = page.locator("fieldset.legend").first.bounding_box()
    assert wide == 900
    assert costs["y"] + costs["height"] < high < legend["y"] + legend["height"]
