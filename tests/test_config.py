"""Configuration: grids, names, overrides, and error messages."""

import json
import time
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from fedkin.algorithms import FedKin, FedProx
from fedkin.algorithms.schedules import Schedule
from fedkin.errors import BadInput
from fedkin.experiments.grid import _section_keys, default_text, plans
from fedkin.experiments.run import run


def names(settings: dict[str, Any], *overrides: str) -> list[str]:
    return [plan.name for plan in plans(settings, overrides)]


def test_default_is_the_demo() -> None:
    tuned = [f"finetuned-tuning_epochs=10-tuning_step={step}-step_size=1" for step in (0.3, 1, 3)]
    others = ["fedkin-beta=0.5-step_size=1", "kin-step_size=1", "fedavg-step_size=1-pooled=True-epochs=1"]
    demo = [plan.name for plan in plans() if "-step_size=1" in plan.name]
    assert demo == ["alone-step_size=1", "fedavg-step_size=1", *tuned, *others]
    assert len(plans()) == 5 * len(demo)
    assert len(default_text().splitlines()) < 50


def test_a_list_anywhere_makes_a_grid() -> None:
    settings = {"seed": [0, 1], "algorithm": [{"name": "fedavg"}, {"name": "fedkin", "beta": [0.9, 0.5]}]}
    assert names(settings) == [
        "fedavg-seed=0",
        "fedkin-beta=0.9-seed=0",
        "fedkin-beta=0.5-seed=0",
        "fedavg-seed=1",
        "fedkin-beta=0.9-seed=1",
        "fedkin-beta=0.5-seed=1",
    ]
    assert names({"model": {"kind": ["softmax", "mlp"]}, "local": {"step_size": [0.1, 1e-3]}}) == [
        "fedavg-model=softmax-step_size=0.1",
        "fedavg-model=softmax-step_size=0.001",
        "fedavg-model=mlp-step_size=0.1",
        "fedavg-model=mlp-step_size=0.001",
    ]
    assert names({"algorithm": ["fedavg", "fedsgd"]}) == ["fedavg", "fedsgd"]


def test_the_same_run_described_twice_is_one_run() -> None:
    assert names({"algorithm": [{"name": "fedkin", "beta": [0.5, 0.5]}]}) == ["fedkin-beta=0.5"]


def test_nested_grids_have_unique_names() -> None:
    settings = {"partition": [{"class_imbalance": 1}, {"class_imbalance": 1, "clients": 7}]}
    found = plans(settings)
    assert len({plan.name for plan in found}) == 2
    assert [plan.config.partition.clients for plan in found] == [100, 7]


def test_names_are_unique() -> None:
    """The stems of x/a and y/a are the same; the second name with a number must not be that of a third run."""
    groups = ["x/a", "a-2", "y/a"]
    found = plans({"partition": {"group": groups}})
    assert [plan.config.partition.group for plan in found] == groups
    assert [plan.name for plan in found] == ["fedavg-group=a", "fedavg-group=a-2", "fedavg-group=a-3"]


def test_ten_thousand_runs_are_planned_in_seconds() -> None:
    settings = {"seed": list(range(100)), "algorithm": {"name": "fedkin", "beta": [i / 100 for i in range(1, 101)]}}
    began = time.process_time()
    assert len(plans(settings)) == 10_000
    assert time.process_time() - began < 10


def test_overrides() -> None:
    settings: dict[str, Any] = {"algorithm": [{"name": "fedavg"}, {"name": "fedkin", "beta": 0.9}]}
    by_name = plans(settings, ["rounds=7", "beta=[0.5, 0.3]", "clients=9", "data.source=mnist", "clip=inf"])
    assert [plan.name for plan in by_name] == ["fedavg", "fedkin-beta=0.5", "fedkin-beta=0.3"]
    config = by_name[0].config
    assert (config.rounds, config.partition.clients, config.data.source) == (7, 9, "mnist")
    assert config.local.work().clip is None
    assert plans(settings, ["model.args.width=10"])[0].config.model.args == {"width": 10}
    assert names(settings, "algorithm=fedsgd") == ["fedsgd"]
    assert names(settings, 'algorithm=[{name="fedprox", alpha=1}]') == ["fedprox-alpha=1"]
    assert settings["algorithm"][1]["beta"] == 0.9, "the caller's settings are not changed"


def test_schedules() -> None:
    beta = {"from": 0.5, "to": 1.0, "over": 20, "shape": "cosine"}
    (plan,) = plans({"algorithm": {"name": "fedkin", "beta": beta}})
    assert plan.name == "fedkin-beta=0.5to1over20"
    algorithm = plan.config.algorithm.build(plan.config.local.step_size)
    assert algorithm == FedKin(beta=Schedule(0.5, 1.0, 20, "cosine"), step_size=1e-2)
    (plan,) = plans({"local": {"step_size": {"from": 1.0, "to": 0.1, "over": 5}}, "algorithm": "fedprox"})
    assert plan.config.algorithm.build(plan.config.local.step_size) == FedProx(step_size=Schedule(1.0, 0.1, 5))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ronds": 3}, "unknown key 'ronds' (did you mean 'rounds'?)"),
        ({"local": {"epoch": 3}}, "unknown key 'local.epoch' (did you mean 'epochs'?)"),
        ({"algorithm": {"name": "fedkin", "betta": 0.5}}, "fedkin has no key 'algorithm.betta' (did you mean 'beta'?)"),
        ({"algorithm": {"name": "fedavg", "beta": 0.5}}, "fedavg has no key 'algorithm.beta'"),
        ({"algorithm": "fedkim"}, "unknown algorithm 'fedkim' (did you mean 'fedkin'?)"),
        (
            {"algorithm": {"name": "fedkin", "beta": 1.5}},
            "beta = 1.5 is out of range: it must be above 0 and at most 1",
        ),
        ({"algorithm": {"name": "fedkin", "beta": 0}}, "beta = 0 is out of range"),
        (
            {"algorithm": {"name": "fedkin", "beta": "half"}},
            "algorithm.beta = 'half' is not valid: it must be a number or a schedule",
        ),
        ({"algorithm": {"name": "fedkin", "beta": {"from": 0.5, "to": 1}}}, "algorithm.beta.over is missing"),
        ({"local": {"step_size": -1}}, "step_size = -1 is out of range: it must be above 0"),
        ({"local": {"epochs": 0}}, "local.epochs = 0 is out of range: it must be greater than or equal to 1"),
        ({"local": {"batch_size": 0}}, "batch_size = 0 is out of range"),
        ({"local": {"clip": 0}}, "local.clip = 0 is out of range"),
        ({"local": {"order": "random"}}, "local.order = 'random' is not valid: choose 'fixed' or 'shuffled'"),
        ({"partition": {"clients": 1}}, "partition.clients = 1 is out of range"),
        ({"partition": {"class_imbalance": -1}}, "partition.class_imbalance = -1 is out of range"),
        ({"take_part": 200}, "take_part = 200 is more than the 100 clients there are"),
        ({"take_part": "some"}, "take_part = 'some' is not valid"),
        ({"rounds": "many"}, "rounds = 'many' is not valid"),
        ({"rounds": []}, "describes no run"),
        ({"local": 3}, "[local] must be a table of keys, not 3"),
        ({"local": {"step_size": True}}, "local.step_size = True is not valid"),
        ({"local": {"epochs": "5"}}, "local.epochs = '5' is not valid"),
        ({"rounds": True}, "rounds = True is not valid"),
        (
            {"algorithm": {"name": "fedkin", "beta": True}},
            "algorithm.beta = True is not valid: it must be a number or a schedule",
        ),
        ({"algorithm": {"name": "fedkin", "absent": 3}}, "algorithm.absent = 3 is not valid: it must be a string"),
        ({"seed": 2**32}, f"seed = {2**32} is out of range"),
        ({"rounds": 2**63}, f"rounds = {2**63} is out of range"),
        ({"threads": 100_000}, "threads = 100000 is out of range"),
        ({"take_part": 0}, "take_part = 0 is out of range"),
        ({"algorithm": 5}, "[algorithm] must be a table of keys, not 5"),
        ({"name": "a/b"}, "must be usable as the name of a folder"),
        ({"threshold": 2}, "threshold = 2 is out of range"),
    ],
    ids=str,
)
def test_bad_settings(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as error:
        plans(settings)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("rounds", "--set takes key=value"),
        ("ronuds=3", "unknown key 'ronuds' (did you mean 'rounds'?)"),
        ("betta=0.3", "unknown key 'betta' (did you mean 'beta'?)"),
        ("local.epoch=3", "unknown key 'local.epoch' (did you mean 'local.epochs'?)"),
        ("alpha=3", "none of the algorithms (fedavg) has a key 'alpha'"),
        ("rounds=" + "9" * 5000, "--set rounds: the value cannot be read"),
        ("rounds=" + "[" * 2000 + "]" * 2000, "--set rounds: the value cannot be read"),
        ("model.kind.args.x=3", "unknown key"),
        ("kind=uniform", "'kind' could be any of graph.kind, model.kind"),
        ("neighbours=3", "'neighbours' could be any of graph.neighbours, algorithm.neighbours: write one of them out"),
    ],
)
def test_bad_overrides(override: str, says: str) -> None:
    with pytest.raises(BadInput) as error:
        plans({"algorithm": "fedavg"}, [override])
    assert says in str(error.value)


def test_an_invalid_algorithm_cannot_be_overridden() -> None:
    with pytest.raises(BadInput, match="algorithm = 5 is not valid"):
        plans({"algorithm": 5}, ["beta=0.5"])


def test_nested_too_deeply() -> None:
    deep: Any = 3
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(BadInput, match="nested too deeply"):
        plans({"rounds": deep})


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("rounds = 3\n")
    (plan,) = plans(file)
    assert (plan.config.name, plan.config.rounds) == ("mine", 3)
    file.write_text("rounds = \n")
    with pytest.raises(BadInput, match="is not valid TOML"):
        plans(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="cannot be read"):
        plans(file)
    with pytest.raises(BadInput, match="there is no file"):
        plans(tmp_path / "none.toml")
    file.write_text(f"rounds = {'9' * 5000}")
    for unreadable in (tmp_path, file, Path("nul\0.toml")):
        with pytest.raises(BadInput, match="cannot be read"):
            plans(unreadable)
    file.write_text(f"rounds = {'[' * 2000}{']' * 2000}")
    with pytest.raises(BadInput, match="nested too deeply"):
        plans(file)


def test_every_setting_is_documented() -> None:
    page = Path(__file__).parents[1].joinpath("docs", "experiments.md").read_text()
    sections = {"data", "partition", "graph", "model", "local", "aggregation", "privacy", "reading", "algorithm"}
    for key in set(_section_keys()) - sections:
        assert f"| `{key}` |" in page, key


def test_new_experiments_are_paired_and_the_paper_s_are_published() -> None:
    assert {plan.config.partition.scheme for plan in plans()} == {"paired"}
    paper = files("fedkin.paper")
    (theory,) = {plan.config.partition.scheme for plan in plans(str(paper / "theory.toml"))}
    assert theory == "published"
    sources = [tomllib.loads(file.read_text()) for file in (paper / "reproductions").iterdir()]
    of_paper = [source for source in sources if "settings" in source and "no experiment" not in source["paper"]]
    schemes = [source["settings"]["partition"]["scheme"] for source in of_paper]
    assert len(schemes) > 5
    assert set(schemes) == {"published"}


@pytest.mark.parametrize("scheme", ["published", "paired"])
def test_a_recorded_run_without_a_scheme_is_published(tmp_path: Path, scheme: str) -> None:
    """The default was different: a folder of an earlier version must not be continued as a paired run."""
    settings = {"name": "old", "rounds": 1, "partition": {"clients": 3, "scheme": scheme}, "algorithm": "fedavg"}
    (first,) = run(settings, out=tmp_path)
    file = tmp_path / "old" / "fedavg" / "config.json"
    config = json.loads(file.read_text())
    del config["partition"]["scheme"]
    file.write_text(json.dumps(config))
    if scheme == "published":
        (again,) = run(settings, out=tmp_path)
        assert again.rounds == first.rounds, "kept, with the seconds it took then"
    else:
        with pytest.raises(BadInput, match=r"partition\.scheme was published, now paired"):
            run(settings, out=tmp_path)
