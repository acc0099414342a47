"""The page of a report: what is on it, for all kinds of experiments; the charts are drawn by Vega-Lite itself."""

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fedkin.algorithms import ALGORITHMS
from fedkin.errors import BadInput
from fedkin.markup import Markup, facts_table, html_table, script_data, tag
from fedkin.reports.answer.contenders import fields_of
from fedkin.reports.answer.sentences import answer_of
from fedkin.reports.page import document
from fedkin.reports.page.charts import Chart
from fedkin.reports.page.columns import encoded, rows_of, thinned
from fedkin.reports.page.document import HOW, page_of
from fedkin.reports.page.glossary import METHODS_IN_WORDS
from fedkin.reports.page.sections import section_of
from fedkin.reports.report import conclusion_text, write
from fedkin.reports.runs import collect
from page_runs import write_comparison_of
from run_folders import FEDAVG, FEDKIN, write_run

EVIL = "<script>alert('{}')</script> & \"\\</script> ${{x}}"


def page_in(folder: Path) -> str:
    return page_of(collect(folder))


def visible(page: str) -> str:
    """The text of a page, without its scripts and tags."""
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    loaded: dict[str, Any] = json.loads(found[1])
    return loaded


# -- parts -------------------------------------------------------------------------------------------------------------


def test_markup_is_escaped() -> None:
    assert tag("p", "a < b & c", class_="x", title='"') == '<p class="x" title="&quot;">a &lt; b &amp; c</p>'
    assert tag("p", Markup("<b>c</b>"), hidden=True, id=None) == "<p hidden><b>c</b></p>"
    table = html_table([("a", ""), ("b", "why <")], [["<i>", "1"]], [False, True])
    assert '<th scope="row">&lt;i&gt;</th><td class="number">1</td>' in table
    assert 'title="why &lt;"' in table
    assert "&lt;b&gt;" in facts_table("<b>", {"x": "y"})


def test_data_cannot_end_its_script() -> None:
    text = script_data({"x": "</script><!--\u2028"}, "d")
    assert text.count("<") == 2
    assert json.loads(text[text.index(">") + 1 : text.rindex("<")]) == {"x": "</script><!--\u2028"}


def test_columns_come_back_as_rows() -> None:
    columns = encoded({"name": ["b", "a", "b"], "value": [0.123456789, float("nan"), 2.0]})
    assert columns == {"name": {"of": ["b", "a"], "codes": [0, 1, 0]}, "value": [0.12346, None, 2]}
    assert rows_of(columns)[1:] == [{"name": "a", "value": None}, {"name": "b", "value": 2}]


def test_thinning_keeps_both_ends() -> None:
    assert thinned(5, 10).tolist() == [0, 1, 2, 3, 4]
    assert thinned(101, 5).tolist() == [0, 25, 50, 75, 100]


# -- the whole page ----------------------------------------------------------------------------------------------------


def test_the_conclusion_comes_first_then_the_table_then_charts(tmp_path: Path) -> None:
    folder = write_comparison_of(tmp_path)
    page = page_in(folder)
    text = visible(page)
    order = [
        "Kin is best: accuracy",
        "Training alone has",
        "No client would be better off alone",
        "What could change this answer",
        "There is one seed only",
        "Chosen at the edge of what was tried: γ = 0.1, the smallest, of",
        "Every method at its best setting",
        "Methods in the charts",
        "Difference from Kin",
        "Over the rounds",
        "Every client",
        "What each client gains over training alone",
        "What the words mean",
        "The whole configuration, and all 8 runs",
        "fedkin 0.1.0",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert "fedkin" in text[places[-1] :]
    assert len(page) < 1.5e6


def test_nothing_is_fetched(tmp_path: Path) -> None:
    page = page_in(write_comparison_of(tmp_path))
    assert "default-src 'none'" in page
    assert "connect-src" not in page

    class Sources(HTMLParser):
        found: list[str] = []  # noqa: RUF012 - of one test

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found += [str(value) for key, value in attrs if key in ("src", "href", "srcset", "action")]

    Sources().feed(page)
    assert Sources.found == []


def test_numbers_of_the_table(tmp_path: Path) -> None:
    """Kin 90 %, alone 60 %, every client +30: an interval without width. 30 rounds of 2,600 bytes are 0.078 MB."""
    text = visible(page_in(write_comparison_of(tmp_path, clients=5)))
    assert "Alone γ=0.1 60.0 % −30.0 (−30.0 to −30.0) behind 55.0 % — " in text
    costs = text[text.index("Global model, fairness and costs") :]
    row = costs[costs.index("Alone ") :]  # its clients have 56 to 64 %; FedAvg's 70 % it never reaches
    assert row.startswith("Alone 60.0 % 2.8 % — — — 30 0.078 0.078 3.0")


def test_the_glossary_explains_every_algorithm() -> None:
    assert METHODS_IN_WORDS.keys() == ALGORITHMS.keys()


def test_names_are_only_names(tmp_path: Path) -> None:
    folder = write_comparison_of(tmp_path, names=EVIL, experiment="<img src=x onerror=alert(1)>")
    write_run(tmp_path, "own", {"name": "mine:<svg onload=alert(2)>", "beta": "<b>"}, experiment=folder.name)
    page = page_in(folder)
    for piece in ("<script>alert", "<img src=x", "<svg onload", "<b>"):
        assert piece not in page
    clients = data_of(page)["charts"]["part-0-clients"]["data"]["clients"]["client"]["of"]
    assert EVIL.format(0) in clients


def test_a_thousand_clients_and_many_seeds_stay_small(tmp_path: Path) -> None:
    """4 methods, 7 seeds and 1,000 clients are 28,000 dots, of which a page has room for 24,000."""
    folder = write_comparison_of(tmp_path, clients=1000, seeds=7)
    page = page_in(folder)
    assert len(page.encode()) < 3e6
    clients = data_of(page)["charts"]["part-0-clients"]["data"]["clients"]
    assert len(clients["value"]) == 24_000
    assert (min(clients["value"]), max(clients["value"])) == (0.56, 0.94)
    assert "4,000 dots are left out" in visible(page)


def test_several_federations_have_a_section_each(tmp_path: Path) -> None:
    for clients in (5, 6):
        for name in ("fedavg", "kin"):
            own = {str(i): 0.5 + 0.1 * (name == "kin") for i in range(clients)}
            summed = {"final_validation_loss": 0.5}
            write_run(
                tmp_path, f"{name}{clients}", {"name": name}, summed=summed, clients=own, partition={"clients": clients}
            )
    page = page_in(tmp_path / "demo")
    assert {name.rsplit("-", 1)[0] for name in data_of(page)["charts"]} == {"part-0", "part-1"}
    text = visible(page)
    assert text.index(" 5 clients ") < text.index(" 6 clients ")


def test_without_validation_nothing_was_chosen_honestly(tmp_path: Path) -> None:
    folder = write_comparison_of(tmp_path, validated=False)
    text = visible(page_in(folder))
    assert "No setting was chosen honestly" in text
    assert "the best of 8 rows looks better than it is" in text
    assert "Kin, γ=0.3" in text
    assert "Every method at its best setting" not in text


def test_of_numbers_the_lowest_error_is_best(tmp_path: Path) -> None:
    """The same values as errors: training alone has the lowest, 0.1 below FedAvg at every client."""
    folder = write_comparison_of(tmp_path, clients=5)
    for file in folder.rglob("*.json*"):
        text = file.read_text()
        file.write_text(text.replace("test_accuracy", "test_mse").replace("own_accuracy", "own_mse"))
    page = page_in(folder)
    text = unescape(visible(page))
    assert (
        "Nothing beats training alone: mean squared error 0.6 on the clients' own test samples, "
        "0.1 better than the next, FedAvg."
    ) in text
    assert "FedAvg γ=0.1 0.7 +0.1 (+0.1 to +0.1) behind" in text
    assert "accuracy" not in text
    assert "%'" not in json.dumps(data_of(page)["charts"]["part-0-clients"]["spec"])


def test_one_setting_each_needs_no_validation(tmp_path: Path) -> None:
    for name in (FEDAVG, FEDKIN):
        write_run(tmp_path, str(name["name"]), name)
    text = visible(page_in(tmp_path / "demo"))
    assert "No setting was chosen honestly" not in text
    assert "of the global model on all test samples" in text
    assert "Every client" not in text


def test_one_run(tmp_path: Path) -> None:
    write_run(tmp_path, "a", FEDAVG)
    page = page_in(tmp_path / "demo")
    assert "Only one method has finished, FedAvg: accuracy 90.0 %" in visible(page)
    assert list(data_of(page)["charts"]) == ["part-0-curves"]


def test_diverged_and_unfinished_runs_are_said_and_drawn(tmp_path: Path) -> None:
    folder = write_comparison_of(tmp_path)
    write_run(tmp_path, "gone", FEDKIN, status="diverged", diverged_at=7)
    write_run(tmp_path, "going", FEDKIN | {"beta": 0.7}, summary=False, rounds=12)
    page = page_in(folder)
    text = visible(page)
    assert "1 of 10 runs diverged (FedKin) and cannot be chosen" in text
    assert "1 of 10 runs have not finished and are left out" in text
    labels = data_of(page)["charts"]["part-0-curves"]["data"]["curves"]["method"]["of"]
    assert labels[-2:] == ["FedKin β=0.7, γ=0.01 (running)", "FedKin β=0.5, γ=0.01 (diverged)"]


def test_nothing_has_finished(tmp_path: Path) -> None:
    write_run(tmp_path, "a", FEDAVG, summary=False, rounds=3)
    write_run(tmp_path, "b", FEDKIN, summary=False, rounds=0)
    page = page_in(tmp_path / "demo")
    assert "There is no answer yet: no run has finished (2 running)." in visible(page)
    assert list(data_of(page)["charts"]) == ["part-0-curves"]


def test_35_lanes(tmp_path: Path) -> None:
    for place in range(35):
        write_run(tmp_path, f"r{place}", FEDKIN | {"beta": 0.2 + place / 100}, final=0.5 + place / 100)
    page = page_in(tmp_path / "demo")
    assert page.count('<input type="checkbox"') == 35
    assert len(page) < 2e6


def test_without_the_packages_all_else_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, "a", FEDAVG)
    monkeypatch.setattr("fedkin.reports.report.can_make_page", lambda: False)
    monkeypatch.setattr(document, "can_make_page", lambda: False)
    assert [path.name for path in write(tmp_path / "demo")] == ["report.md", "report.csv", "curves.png", "curves.pdf"]
    with pytest.raises(BadInput, match=re.escape("pip install 'fedkin[page]'")):
        page_in(tmp_path / "demo")
    assert "pip install" in HOW


# -- the terminal ------------------------------------------------------------------------------------------------------


def test_the_answer_in_80_columns(tmp_path: Path) -> None:
    lines = conclusion_text(collect(write_comparison_of(tmp_path, seeds=2)), 80).splitlines()
    assert lines[0].startswith("Kin is best: accuracy 89.3 %")
    assert max(map(len, lines)) <= 80
    assert "What could change this answer:" in lines
    assert all(
        line.startswith(("- ", "  ")) for line in lines[lines.index("What could change this answer:") + 1 :] if line
    )


# -- charts ------------------------------------------------------------------------------------------------------------


def charts_in(folder: Path) -> dict[str, Chart]:
    (part,) = fields_of(collect(folder))
    return section_of(part, answer_of(part), "p", "", 2000).charts


def test_charts_are_valid_and_drawn(tmp_path: Path) -> None:
    """Altair checks a specification against the schema of Vega-Lite; vl-convert draws it, with Vega-Lite itself."""
    import altair as alt
    import vl_convert

    folder = write_comparison_of(tmp_path, seeds=2)
    charts = charts_in(folder)
    assert list(charts) == ["p-differences", "p-curves", "p-clients", "p-gains"]
    drawn = {}
    for name, chart in charts.items():
        whole = chart.whole()
        alt.Chart.from_dict(whole)
        drawn[name] = vl_convert.vegalite_to_svg(json.dumps(whole | {"width": 400}))
        assert "<svg" in drawn[name], name
        assert "NaN" not in drawn[name], name
    assert drawn["p-clients"].count('aria-roledescription="circle"') == 4 * 6 * 2  # methods, clients, seeds
