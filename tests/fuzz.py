"""What the fuzzers share: how many examples they try, and random settings, sensible and odd.

In the test suite the examples are always the same. `make fuzz` tries many more, from a seed that it prints.
"""

import datetime
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from fedkin.algorithms import ALGORITHMS as REGISTRY
from fedkin.types import Record

TIMES = int(os.environ.get("FEDKIN_FUZZ", "0"))  # so many times the examples of the test suite; 0: the suite itself


def examples(count: int, shrink: bool = True) -> settings:
    """How a fuzzer is carried out; `shrink`, whether a smaller example makes a failure easier to understand."""
    phases = [Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])]
    return settings(
        phases=phases,
        max_examples=count * max(TIMES, 1),
        derandomize=not TIMES,
        database=None,  # so that a seed alone says which examples are tried
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )


def assert_sentence(error: Exception) -> None:
    """Whether an error message is one sentence that a person can read."""
    text = str(error)
    assert text, "it says nothing"
    assert "\n" not in text, text
    assert len(text) < 400, f"{len(text)} characters: {text}"
    for word in ("Traceback", "pydantic", "<class", "object at 0x", "line 1, in"):
        assert word not in text, text


# -- settings ----------------------------------------------------------------------------------------------------------

FRACTIONS = st.sampled_from([0.1, 0.25, 0.5, 0.9, 1.0, 1])
STEP_SIZES = st.sampled_from([1e-3, 0.01, 0.05, 0.3, 40.0, 1e30])
BOTH = st.sampled_from(["paper", "published"])


def schedules(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values, or tables that describe schedules of them."""
    shapes = st.sampled_from(["linear", "cosine", "geometric", "step"])
    table = {"from": values, "to": values, "over": st.integers(1, 3)}
    return values | st.fixed_dictionaries(table, optional={"shape": shapes})


# Every key with values that are valid by themselves. Sizes are small: a run takes a few hundredths of a second.
VALID: dict[str, st.SearchStrategy[Any]] = {
    "seed": st.integers(0, 3),
    "rounds": st.integers(1, 2),
    "threshold": st.sampled_from([0.1, 0.8, 1.0]),
    "take_part": st.integers(1, 6) | st.just("all"),
    "device": st.just("cpu"),
    "threads": st.integers(0, 2),
    "checkpoint_every": st.integers(1, 3),
    "evaluate_every": st.integers(1, 3),
    "evaluate": st.sampled_from(["all", "test"]),
    "fine_tune": st.integers(0, 2),
    "fine_tune_step": st.sampled_from([0.1, 1]),
    "keep": st.sampled_from(["auto", "all", "model"]),
    "local.optimizer": st.sampled_from(["sgd", "momentum", "adam"]),
    "local.momentum": st.sampled_from([0, 0.5, 0.99]),
    "local.weight_decay": st.sampled_from([0, 0.1, 1e30]),
    "data.source": st.just("digits"),
    "data.preprocess": st.sampled_from(["auto", "half", "standardise", "none"]),
    "data.indicators": st.booleans(),
    "partition.clients": st.integers(3, 6),
    "partition.test": st.sampled_from([0.1, 0.2, 0.5]),
    "partition.class_imbalance": st.sampled_from([0, 0.0, 0.3, 10, 1e3, 1e300]),
    "partition.size_imbalance": st.sampled_from([0, 0.5, 3.0, 40.0, 1e5]),
    "partition.scheme": st.sampled_from(["paired", "paper", "published"]),
    "partition.mixes": BOTH,
    "partition.clusters": st.integers(0, 7),
    "partition.labels_each": st.integers(0, 3),
    "graph.kind": st.sampled_from(["similarity", "uniform", "shuffled", "global"]),
    "graph.weights": st.sampled_from(["adjacency", "uniform", "samples"]),
    "graph.neighbours": st.integers(0, 6),
    "graph.search": st.sampled_from(["exact", "approximate"]),
    "graph.temperature": st.sampled_from([1e-300, 0.01, 0.5, 1, 2.0, 1e300]),
    "graph.pixels": st.sampled_from(["auto", "raw", "preprocessed"]),
    "graph.floor": st.sampled_from([0, 1e-9, 0.1, 0.99]),
    "model.kind": st.sampled_from(["softmax", "mlp"]),
    "model.hidden": st.integers(1, 5),
    "local.step_size": schedules(STEP_SIZES),
    "local.epochs": st.integers(1, 2),
    "local.batch_size": st.integers(20, 300) | st.just("all"),
    "local.steps": st.integers(0, 5),
    "local.order": st.sampled_from(["fixed", "shuffled"]),
    "local.l2": st.sampled_from([0, 1e-4, 0.5, 1e30]),
    "local.clip": st.sampled_from([math.inf, 1e-300, 0.1, 5]),
    "reading": BOTH,
    "reading.anchors": BOTH,
    "reading.averaging": BOTH,
    "reading.penalty": BOTH,
    "reading.proximal": BOTH,
    "reading.sign": BOTH,
}

# Those of the registry that are not named below; Kin needs validation samples.
SYSTEMS = set(REGISTRY) - {"fedavg", "fedprox", "fedkin", "fedsgd", "kin"}
ALGORITHMS = st.one_of(
    st.sampled_from(["fedavg", "fedprox", "fedkin", "fedsgd", "own_algorithms:Ditto", "own_algorithms:PerFedAvg"]),
    st.fixed_dictionaries({"name": st.just("fedprox"), "alpha": schedules(st.sampled_from([0, 0.1, 1.0, 100.0]))}),
    st.fixed_dictionaries(
        {"name": st.just("fedkin")},
        optional={
            "beta": schedules(FRACTIONS),
            "alpha": schedules(st.sampled_from([0, 0.1, 2.0])),
            "absent": st.sampled_from(["global", "last"]),
        },
    ),
    st.sampled_from(sorted(SYSTEMS)),
    st.fixed_dictionaries({"name": st.just("own_algorithms:Scaffold"), "server_step": schedules(FRACTIONS)}),
    st.fixed_dictionaries({"name": st.just("own_algorithms:IFCA"), "groups": st.integers(1, 3)}),
)

# The largest numbers are left out where a valid run could take them at their word: 10⁹ epochs take a while.
ODD_NUMBERS = [0, -1, 7, -(2**70), 10**400, 2.5, -0.0, 5e-324, 1e308, -1e308, math.nan, math.inf, -math.inf]
ODD_WORDS = [
    *("", " ", "1", "0.5", "nan", "all", "ALL", "true", ".", "..", "a/b", "/", "[red]", "[/]", ":", "a:", ":b", "a:b"),
    *("\0", "a\0b", "\ud800", "naïve 学习 🜁", "line\nbreak", "{}", "%s %n", "x" * 300, "none", "None", "softmax "),
    *("own_algorithms:Nothing", "own_algorithms:Algorithm", "own_algorithms:torch", "math:pi", "torch.nn:Linear"),
]
ODD: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, True, False, b"bytes", datetime.date(2024, 2, 29), datetime.time(12), Path("a")])
    | st.sampled_from([np.float64(0.5), np.int64(3), np.float32("nan"), 1j, (1, 2), {1, 2}, range(2), np.zeros(2)])
    | st.sampled_from(ODD_NUMBERS)
    | st.sampled_from(ODD_WORDS)
    | st.text(max_size=8)
    | st.fixed_dictionaries({"from": st.sampled_from(ODD_NUMBERS), "to": FRACTIONS, "over": st.integers(-1, 3)}),
    lambda below: (
        st.lists(below, max_size=2) | st.dictionaries(st.text(max_size=4) | st.just("name"), below, max_size=2)
    ),
    max_leaves=4,
)
ODD_KEYS = st.sampled_from(["betta", "", "algorithm.name", "a b", "[x]", "\0", "seed.seed", "local", "学"]) | st.text(
    max_size=6
)


def put(settings: Record, path: str, value: Any) -> None:
    """Put a value under a dotted key; whatever is in the way is replaced by tables."""
    *tables, leaf = path.split(".")
    for name in tables:
        if not isinstance(settings.get(name), dict):
            settings[name] = {}
        settings = settings[name]
    settings[leaf] = value


@st.composite
def sensible(draw: st.DrawFn) -> Record:
    """Settings of which each is valid by itself, up to two of them as lists that make a grid."""
    made: Record = {"name": "fuzz", "rounds": 2, "partition": {"clients": 4}, "local": {"epochs": 1, "step_size": 0.05}}
    keys = draw(st.lists(st.sampled_from(sorted(VALID)), unique=True, max_size=8))
    listed = draw(st.integers(0, 2))
    for place, key in enumerate(keys):
        value = VALID[key]
        put(made, key, draw(st.lists(value, min_size=1, max_size=2) if place < listed else value))
    made["algorithm"] = draw(ALGORITHMS | st.lists(ALGORITHMS, min_size=1, max_size=2))
    return made


@st.composite
def spoiled(draw: st.DrawFn) -> Record:
    """Sensible settings but for one or two."""
    made = draw(sensible())
    algorithm = st.sampled_from([f"algorithm.{knob}" for knob in ("name", "beta", "alpha", "absent", "step_size", "x")])
    # Whole sections too.
    keys = st.sampled_from([*VALID, "name", "model.args", "algorithm", "data", "partition", "graph", "model", "local"])
    for _ in range(draw(st.integers(1, 2))):
        put(made, draw(keys | algorithm | ODD_KEYS), draw(st.sampled_from(ODD_NUMBERS) | ODD))
    return made


@st.composite
def nonsense(draw: st.DrawFn) -> Any:
    """Settings in which hardly anything is right."""
    keys = st.sampled_from(["name", "seed", "rounds", "data", "partition", "graph", "model", "local", "algorithm"])
    made = draw(st.dictionaries(keys | ODD_KEYS, ODD, max_size=4))
    made.setdefault("rounds", 1)
    return made


def written(value: Any) -> str:
    """A value roughly as one would write it on the command line."""
    text = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else None
    return text or (f"{value:g}" if isinstance(value, float) else repr(value).replace("'", '"'))


@st.composite
def overrides(draw: st.DrawFn) -> list[str]:
    """Arguments of --set: full keys and bare ones, right and wrong."""
    made = []
    for _ in range(draw(st.integers(1, 2))):
        key = draw(
            st.sampled_from(sorted(VALID))
            | st.sampled_from(["algorithm.beta", "beta", "alpha", "model.args.x"])
            | ODD_KEYS
        )
        value = draw(VALID.get(key, ODD) | st.sampled_from(ODD_NUMBERS) | ODD)
        key = key.rpartition(".")[2] if draw(st.booleans()) else key
        text = draw(st.sampled_from([written(value)] * 3 + [str(value)]) | st.text(max_size=8))
        forms = [f"{key}={text}"] * 3 + [f" {key} = {text} ", f"{key}", f"{key}=[{text}, {text}]"]
        made.append(draw(st.sampled_from(forms)))
    return made
