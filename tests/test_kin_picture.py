"""`fedkin kin`: the layout of a graph, what is read from run folders, the picture and the text."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex, to_rgb
from rich.console import Console
from scipy.sparse import csr_array
from typer.testing import CliRunner

from fedkin import run
from fedkin.cli import app
from fedkin.errors import BadInput
from fedkin.reports import kin_figure as figures
from fedkin.reports import kin_layout
from fedkin.reports.kin_figure import colours_of, kin_figure
from fedkin.reports.kin_layout import positions, sunflower
from fedkin.reports.kin_runs import Gains, KinRun, kin_runs
from fedkin.reports.kin_text import kin_text, kin_views
from fedkin.reports.run import Run
from fedkin.types import Floats, Record
from test_figures import inside, texts

# -- layout ------------------------------------------------------------------------------------------------------------


def cliques(*sizes: int, bridges: int = 0) -> tuple[csr_array, Any]:
    """Complete graphs beside each other, and the number of each client's; some edges between consecutive clients."""
    of = np.repeat(np.arange(len(sizes)), sizes)
    edges = (of[:, None] == of) & ~np.eye(len(of), dtype=bool)
    for i in np.flatnonzero(np.diff(of))[:bridges]:
        edges[i, i + 1] = edges[i + 1, i] = True
    return csr_array(edges.astype(np.float64)), of


def ring(clients: int, within: float) -> csr_array:
    """Clients at angles in ascending order; those within some degrees of each other are kin."""
    angles = np.sort(np.random.default_rng(0).uniform(0, 360, clients))
    apart = abs(angles[:, None] - angles)
    near = (np.minimum(apart, 360 - apart) <= within) & ~np.eye(clients, dtype=bool)
    return csr_array(near.astype(np.float64))


@pytest.mark.parametrize("bridges", [0, 2])
@pytest.mark.parametrize("sizes", [(6, 6, 6, 6), (30, 10, 4), (2, 2)])
def test_groups_are_apart(sizes: tuple[int, ...], bridges: int) -> None:
    """Every client is nearer to the centre of its own group than to that of any other."""
    graph, of = cliques(*sizes, bridges=bridges)
    x = positions(graph)
    centres = np.stack([x[of == group].mean(axis=0) for group in range(len(sizes))])
    assert (np.linalg.norm(x[:, None] - centres, axis=-1).argmin(axis=1) == of).all()


@pytest.mark.parametrize("clients", [60, 1000])
def test_a_ring_is_a_ring(clients: int) -> None:
    """The clients lie around the centre in their order, whether all or a sample of them repel each other."""
    assert (clients > kin_layout.SAMPLED) == (clients == 1000)
    x = positions(ring(clients, 30))
    turn = np.unwrap(np.arctan2(x[:, 1], x[:, 0]))
    assert abs(turn[-1] - turn[0]) == pytest.approx(2 * np.pi, rel=0.1)
    assert np.linalg.norm(x, axis=1).min() > 0.4


def test_layouts_are_deterministic_and_finite() -> None:
    graph, _ = cliques(5, 4, 1)
    assert np.array_equal(positions(graph), positions(graph.copy()))
    for odd in (csr_array((1, 1)), csr_array((7, 7)), ring(2, 360), ring(3, 360), ring(5, 90)):
        x = positions(odd)
        assert x.shape == (odd.shape[0], 2)
        assert np.isfinite(x).all()
        assert np.linalg.norm(x, axis=1).max() <= 1 + 1e-9
        assert len(np.unique(x.round(4), axis=0)) == len(x), "no client hides another"


def test_clients_with_the_same_kin_do_not_coincide() -> None:
    star = np.zeros((9, 9))
    star[0, 1:] = star[1:, 0] = 1
    x = positions(csr_array(star))
    apart = np.linalg.norm(x[:, None] - x, axis=-1) + np.eye(9)
    assert apart.min() > 0.1


def test_a_sunflower_fills_the_disc() -> None:
    x = sunflower(200)
    assert np.linalg.norm(x, axis=1).max() == pytest.approx(1)
    inner = (np.linalg.norm(x, axis=1) < 0.5).mean()
    assert inner == pytest.approx(0.25, abs=0.03)


# -- facts -------------------------------------------------------------------------------------------------------------


def kin_run(weights: csr_array | None, clients: list[Record], **other: Any) -> KinRun:
    config = {"algorithm": {"name": "fedkin", "kappa": 1.0, "kin": "updates", "neighbours": 1}}
    of = Run(Path("x"), "demo", "a run", config, {"round": np.arange(2.0)}, {}, "finished")
    rows = [{"client": str(i), "samples": 10, **client} for i, client in enumerate(clients)]
    return KinRun(of, rows, weights, other.pop("rounds", []), other.pop("gains", []))


def few(**known: list[Any]) -> KinRun:
    """0 averages itself and 1, 2 averages 1 and 3, 1 and 3 themselves, 4 itself: pairs 01, 12, 23; 4 is apart."""
    half = [(0, 0), (0, 1), (2, 1), (2, 3)]
    rows = csr_array(([0.5] * 4 + [1.0] * 3, np.array([*half, (1, 1), (3, 3), (4, 4)]).T), shape=(5, 5))
    return kin_run(rows, [dict(zip(known, values, strict=True)) for values in zip(*known.values(), strict=True)])


def test_facts_by_hand() -> None:
    """Kinds 0 0 1 1 1: of the pairs 01, 12, 23 two are of one kind; of all ten pairs, 1 + 3."""
    kin = few(kind=[0, 0, 1, 1, 1])
    assert kin.edges.tolist() == [[0, 1], [1, 2], [2, 3]]
    assert kin.components.tolist() == [4, 1]
    assert kin.purity() == pytest.approx((2 / 3, 0.4))
    assert kin.angle() is None
    assert kin.choices() == [(0, "1 nearest by updates")]


def test_angles_go_round() -> None:
    """350° and 10° are 20° apart, 10° and 100° 90°, 100° and 90° 10°."""
    kin = few(angle=[350.0, 10.0, 100.0, 90.0, 0.0])
    assert kin.angle() == pytest.approx(40)
    assert kin.purity() is None
    assert few(angle=[0.0] * 5, kind=[0] * 5).angle() is None, "kinds say more"


def test_gains_by_hand() -> None:
    own, others = np.array([0.9, 0.5, 0.5, 0.6]), np.array([0.5, 0.5, 0.8, np.nan])
    gains = Gains("others", own, others)
    assert gains.each == pytest.approx([0.4, 0, -0.3])
    assert (gains.share_better, gains.share_worse) == pytest.approx((1 / 3, 1 / 3))
    assert gains.worst_tenth(own) == 0.5
    assert gains.among(np.array([True, False, False, True])).each == pytest.approx([0.4])
    twenty = np.linspace(0, 0.95, 20)
    assert Gains("", twenty, np.zeros(20)).worst_tenth(twenty) == pytest.approx(0.025), "the mean of two"
    assert (gains.points(0.0321), gains.points(-0.004)) == ("+3.2", "−0.4")


def test_what_was_chosen_and_when() -> None:
    said = [("global", "start"), ("global", "start"), ("8 nearest by data", "start"), ("8 nearest by data", "own")]
    records = [{"round": t, "start": start, "uses": uses} for t, (start, uses) in enumerate(said)]
    kin = kin_run(None, [{}], rounds=records)
    assert kin.choices() == [
        (0, "the global model"),
        (2, "8 nearest by data"),
        (3, "8 nearest by data, then own model"),
    ]
    assert kin.others() == {}
    last = {"round": 4, "start": "global", "uses": "alone", "others": {"global, start": 3, "4 nearest by both, own": 2}}
    kin = kin_run(None, [{}], rounds=[*records, last])
    assert kin.choices()[-1] == (4, "the global model, but models trained alone are used")
    assert "5 clients differ at the end (start, model used): 3 × global, start; 2 ×" in shown(kin)


# -- the picture -------------------------------------------------------------------------------------------------------


def drawn(clients: int, known: dict[str, Any] | None = None, new: int = 0) -> KinRun:
    """Clients in four kinds that average eight nearest of their kind."""
    rng = np.random.default_rng(0)
    near = [rng.choice(np.arange(i % 4, clients, 4), 8) for i in range(clients)] if clients > 8 else [[0]] * clients
    i, n = np.repeat(np.arange(clients), len(near[0])), np.concatenate(near)
    weights = csr_array((np.ones(len(i)), (i, n)), shape=(clients, clients))
    rows: list[Record] = [
        {"client": f"name {i}", "samples": int(rng.integers(5, 50)), **{key: f(i) for key, f in (known or {}).items()}}
        for i in range(clients)
    ]
    for row in rows[:new]:
        row["newcomer"] = True
    own = rng.uniform(0.7, 0.9, clients)
    gains = [Gains(word, own, rng.uniform(0.5, 0.8, clients)) for word in ("FedAvg's model", "training alone", "rest")]
    return kin_run(weights, rows, gains=gains)


KINDS = {"kind": lambda i: i % 4}


def nodes(kin: KinRun) -> PathCollection:
    (found,) = (c for c in kin_figure(kin).axes[0].collections if isinstance(c, PathCollection))
    return found


@pytest.mark.parametrize("clients", [2, 5, 24, 40, 100, 2000])
def test_pictures_of_every_size(clients: int) -> None:
    kin = drawn(clients, KINDS, new=1)
    figure = kin_figure(kin)
    graph = figure.axes[0]
    assert inside(figure)
    assert len(np.asarray(nodes(kin).get_offsets())) == clients
    names = {text.get_text() for text in graph.texts} & {f"name {i}" for i in range(clients)}
    assert len(names) == (clients if clients <= 40 else 0)
    assert [axes.get_title(loc="left") for axes in figure.axes[1:]] == [
        "Gain over FedAvg's model",
        "Gain over training alone",
    ]


def test_nodes_have_the_colour_of_their_kind() -> None:
    kin = drawn(20, KINDS, new=2)
    each = colours_of(kin).each
    assert len(set(each)) == 4
    assert all(each[i] == each[i % 4] for i in range(20))
    faces = [to_hex(colour) for colour in nodes(kin).get_facecolors()]  # type: ignore[attr-defined]
    assert faces == ["#ffffff"] * 2 + each[2:], "newcomers are hollow"
    (legend,) = kin_figure(kin).legends
    assert [text.get_text() for text in legend.get_texts()] == ["kind", "0", "1", "2", "3", "newcomer"]


def test_other_colours() -> None:
    circle = colours_of(drawn(36, {"angle": lambda i: 10.0 * i}))
    assert circle.title == "angle"
    assert len(set(circle.each)) == 36
    first, last = (to_rgb(colour) for colour in colours_of(drawn(2, {"angle": lambda i: 359.9 * i})).each)
    assert last == pytest.approx(first, abs=0.02), "360° is 0°"
    mixed = {"main_class": lambda i: i % 3, "main_share": lambda i: 0.3}
    assert len(set(colours_of(drawn(12, mixed)).each)) == 1, "no class stands out"
    assert len(set(colours_of(drawn(12, mixed | {"main_share": lambda i: 0.8})).each)) == 3
    many = colours_of(drawn(30, {"kind": lambda i: i % 15}))
    assert len(set(many.each)) == 15
    assert many.legend == {}


def test_larger_clients_are_larger() -> None:
    kin = drawn(12)
    sizes, samples = nodes(kin).get_sizes(), kin.known("samples")
    assert samples is not None
    assert sizes[samples.argmax()] == sizes.max() > sizes[samples.argmin()]


def test_bars_are_sorted_and_show_the_gains() -> None:
    kin = drawn(20, KINDS)
    panel = kin_figure(kin).axes[1]
    heights = [bar.get_height() for bar in panel.patches]  # type: ignore[attr-defined]
    assert heights == pytest.approx(sorted(100 * kin.gains[0].all))
    labels = [label.get_text() for label in panel.get_xticklabels()]
    assert labels == [f"name {i}" for i in np.argsort(kin.gains[0].all)]


def test_very_many_edges_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    kin = drawn(60)
    monkeypatch.setattr(figures, "MOST_DRAWN", 50)
    figure = kin_figure(kin)
    (lines,) = (c for c in figure.axes[0].collections if isinstance(c, LineCollection))
    assert len(lines.get_segments()) == 50
    note = f"50 of {len(kin.edges):,} pairs"
    assert any(note in text for text in texts(figure))
    assert note in shown(kin)


def test_a_picture_without_kin() -> None:
    """The global model was chosen: the clients are there, without edges."""
    records = [{"round": 0, "start": "global", "uses": "start"}]
    kin = kin_run(None, [{} for _ in range(6)], rounds=records)
    figure = kin_figure(kin)
    assert "all start at the global model: nobody has kin" in texts(figure)
    assert len(figure.axes) == 1, "nothing to compare with"
    assert "none: all clients start at the global model" in shown(kin)


def shown(kin: KinRun) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - nothing is written
    console.print(kin_text(kin))
    return console.export_text()


def test_text_of_newcomers() -> None:
    kin = drawn(20, KINDS, new=4)
    text = shown(kin)
    assert "20, of them 4 newcomers" in text
    for new, line in ((False, "\nover FedAvg's model"), (True, "newcomers over FedAvg's model")):
        mean = kin.gains[0].all[kin.new == new].mean()
        (row,) = (r for r in text.splitlines() if r.startswith(line.strip()))
        assert kin.gains[0].points(mean) in row


# -- from run folders --------------------------------------------------------------------------------------------------

SETTINGS: Record = {
    "name": "demo",
    "rounds": 5,
    "evaluate_every": 5,
    "partition": {"clients": 12, "kinds": 2, "differ": "permuted", "newcomers": 0.2},
    "local": {"step_size": 0.1, "epochs": 3, "batch_size": 16},
    "algorithm": ["fedavg", "alone", "kin"],
}


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results")
    run(SETTINGS, out=out)
    return out / "demo"


def accuracies(folder: Path, key: str) -> Floats:
    return np.array([json.loads(line)[key] for line in (folder / "clients.jsonl").read_text().splitlines()])


def test_reading(experiment: Path) -> None:
    (kin,) = kin_runs(experiment)
    (same,) = kin_runs(experiment / "kin")
    assert kin.names == same.names
    assert kin.weights is not None
    np.testing.assert_allclose(np.asarray(kin.weights.sum(axis=1)).reshape(-1), 1)
    purity = kin.purity()
    assert purity is not None
    assert purity[0] > 0.9
    average, alone, rest = kin.gains
    own, new = accuracies(experiment / "kin", "own_accuracy"), kin.new
    np.testing.assert_allclose(average.all, own - accuracies(experiment / "fedavg", "global_accuracy"))
    np.testing.assert_allclose(alone.all[~new], (own - accuracies(experiment / "alone", "own_accuracy"))[~new])
    assert np.isnan(alone.all[new]).all(), "a newcomer has not trained alone"
    np.testing.assert_allclose(rest.all, own - accuracies(experiment / "kin", "global_accuracy"))
    assert len(same.gains) == 3, "a run knows its experiment"


def test_clients_are_paired_by_name_and_runs_by_data(experiment: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(experiment, tmp_path / "demo")
    (before,) = kin_runs(folder)
    lines = (folder / "alone" / "clients.jsonl").read_text().splitlines()
    (folder / "alone" / "clients.jsonl").write_text("\n".join(lines[::-1]) + "\n")
    config = json.loads((folder / "fedavg" / "config.json").read_text())
    (folder / "fedavg" / "config.json").write_text(json.dumps(config | {"seed": 1}))
    (after,) = kin_runs(folder)
    assert [gains.over for gains in after.gains] == ["training alone", "the average of all models"]
    np.testing.assert_array_equal(after.gains[0].all, before.gains[1].all)


def test_the_best_of_several_runs_is_compared_with(experiment: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(experiment, tmp_path / "demo")
    shutil.copytree(folder / "alone", folder / "better")
    summary = json.loads((folder / "better" / "summary.json").read_text())
    (folder / "better" / "summary.json").write_text(json.dumps(summary | {"final_own_test_accuracy": 0.999}))
    (folder / "better" / "clients.jsonl").write_text((folder / "kin" / "clients.jsonl").read_text())
    (kin,) = kin_runs(folder)
    assert not kin.gains[1].each.any()


def test_without_testing_clients_of_their_own_there_is_still_a_picture(experiment: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(experiment / "kin", tmp_path / "kin")
    (folder / "clients.jsonl").unlink()
    (kin,) = kin_runs(folder)
    assert kin.names == [str(i) for i in range(12)]
    assert kin.gains == []
    assert inside(kin_figure(kin))


def test_what_cannot_be_shown(experiment: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="did you mean 'kin'"):
        kin_runs(experiment, "kim")
    with pytest.raises(BadInput, match=r"no finished run in .* has kin: run an experiment"):
        kin_runs(experiment / "fedavg")
    folder = shutil.copytree(experiment / "kin", tmp_path / "kin")
    content = bytearray((folder / "kin.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "kin.safetensors").write_bytes(content)
    with pytest.raises(BadInput, match=r"kin.safetensors is damaged: .*--fresh"):
        kin_runs(folder)


def test_command(experiment: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["kin", str(experiment), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    for words in ("after round 1: ", "nearest by updates", "of them 2 newcomers", "over training alone", "run alone"):
        assert words in done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kin-kin.pdf", "kin-kin.png"]
    first = (tmp_path / "kin-kin.png").read_bytes()
    list(kin_views(experiment / "kin"))
    assert (experiment / "kin" / "kin.png").read_bytes() == first, "the same runs give the same bytes"
