"""Defaults: those of the command and of Python agree, and what was published does not depend on them."""

import inspect
import json
import tomllib
from collections.abc import Sequence
from importlib.resources import files

import pytest

import fedkin
from fedkin.algorithms import Algorithm, Local
from fedkin.experiments.config import Experiment, former_settings
from fedkin.experiments.grid import Plan, plans
from fedkin.experiments.seals import digest, unusual
from fedkin.flower import Strategy
from fedkin.paper.reproduce import read_reproduction, reproduction_names

# Of the resolved configurations of each reproduction, in full and quick. A change of a default must not change them:
# then add the former value to fedkin/paper/choices.toml (for the demo and the theory to their files), and to
# FORMER_DEFAULTS in experiments/config.py.
PUBLISHED = {
    "classes": ("bb6e80999227", "e73d564d399d"),
    "clipping": ("a3f6c195178c", "6e15d0c05164"),
    "controls": ("03958952b13b", "e438ddc26441"),
    "curves": ("bb6e80999227", "e73d564d399d"),
    "epochs": ("c3c6d6f664cd", "c59085891162"),
    "fedu": ("144643f03d29", "1544a8be6bd3"),
    "kin": ("746b0624a9d9", "bdf3823ff8c1"),
    "kinship": ("b9f5ea6ed763", "785d4f8039f9"),
    "misalignment": ("f00c4cf61040", "3b6425a47b80"),
    "momentum": ("fca94853a1eb", "5ca58e57cb9d"),
    "pfedme": ("94ff9d846de0", "ce2b28abb78d"),
    "privacy": ("3cd35bfbb824", "7a8baad7bc71"),
    "published": ("11342d2756d7", "883fcf33f40b"),
    "readings": ("590ba73480ca", "3c1ac4adb9e0"),
    "samples": ("f00c4cf61040", "3b6425a47b80"),
    "school": ("26307e5700e1", "794cb4889951"),
    "spectrum": ("f00c4cf61040", "3b6425a47b80"),
    "step-size": ("89c3fd5b53b8", "90688f9c9a25"),
    "table": ("bb6e80999227", "e73d564d399d"),
    "times": ("bb6e80999227", "e73d564d399d"),
    "writers": ("4b0577803e26", "f5f56cc9c347"),
}
DEMO, THEORY = "cc88fd7476a7", "75f054aec227"


def digest_of(runs: Sequence[Plan]) -> str:
    """Of the names of runs and of all their settings that differ from the former defaults."""
    usual = former_settings()
    found = [(plan.name, plan.config.model_dump(mode="json", by_alias=True)) for plan in runs]
    return digest(json.dumps([(name, unusual(settings, usual)) for name, settings in found]))


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
@pytest.mark.parametrize("name", reproduction_names())
def test_reproductions_have_the_published_settings(name: str, quick: bool) -> None:
    runs = [plan for part in read_reproduction(name, quick).parts for plan in plans(part.settings)]
    assert digest_of(runs) == PUBLISHED.get(name, ("new", "new"))[quick]


def test_demo_and_theory_have_their_settings() -> None:
    """The tables of the README and of docs/theory.md are of these runs."""
    assert digest_of(plans()) == DEMO
    theory = tomllib.loads((files("fedkin.paper") / "theory.toml").read_text(encoding="utf-8"))
    assert digest_of(plans(theory)) == THEORY


def test_a_digest_notices_a_changed_default() -> None:
    """Every default but those that change no result, and a setting that is left out means the former default."""
    part = read_reproduction("table").parts[0].settings
    before = digest_of(plans(part))
    assert digest_of(plans({**part, "graph": {"weights": "samples"}})) != before
    assert digest_of(plans({**part, "local": {**part["local"], "order": "shuffled"}})) != before
    explicit = {"temperature": 1.0, "neighbours": 0, **part["graph"]}
    assert digest_of(plans({**part, "graph": explicit})) == before


def test_the_command_and_python_have_the_same_defaults() -> None:
    config = Experiment()
    assert config.local.work() == Local()
    assert config.local.step_size == Algorithm.step_size
    train = inspect.signature(fedkin.train).parameters
    assert config.rounds == train["rounds"].default
    assert train["threshold"].default is None, "by the measure: 0.75 of an accuracy, none of an error"
    strategy = inspect.signature(Strategy.__init__).parameters
    for function in (train, strategy):
        assert function["weights"].default == config.graph.weights == "samples"
        assert function["graph"].default == config.graph.kind
    assert config.local.order == "shuffled"
