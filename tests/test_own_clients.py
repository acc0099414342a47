"""Clients with samples of their own: division within clients, agreement on columns, and the federation."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedkin
from fedkin.data import Clients, Federation, federate, from_clients, from_folder, from_table
from fedkin.data.client_sources import TableOptions, read_clients
from fedkin.data.division import divided_within
from fedkin.data.features import chosen_preprocessing
from fedkin.errors import BadInput
from fedkin.graph.similarity import message, messages

# --- division within clients ---


@settings(deadline=None)
@given(
    labels=st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=30), min_size=1, max_size=4),
    test=st.floats(0.05, 0.95),
    validation=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    seed=st.integers(0, 99),
)
def test_every_row_is_in_one_part(labels: list[list[int]], test: float, validation: float, seed: int) -> None:
    parts = divided_within([np.array(y) for y in labels], test=test, validation=validation, seed=seed)
    for y, (train, held, tested) in zip(labels, parts, strict=True):
        assert sorted([*train, *held, *tested]) == list(range(len(y)))
        assert len(train) >= 1
        assert len(tested) >= 1
        assert len(held) == 0 if not validation else (len(held) >= 1 or len(y) == 2)


def test_division_by_hand() -> None:
    """Of 20 rows, 4 for testing, a quarter of each class (12 and 8 rows: 2.4 and 1.6); of 16, 4 for validation."""
    y = np.repeat([0, 1], [12, 8])
    ((train, held, tested),) = divided_within([y], test=0.2, validation=0.25)
    assert (len(train), len(held), len(tested)) == (12, 4, 4)
    assert Counter(y[tested].tolist()) == {0: 2, 1: 2}
    ((train, held, tested),) = divided_within([y], test=0.2, validation=0.25, samples=8)
    assert (len(train), len(held), len(tested)) == (6, 2, 4)
    ((train, held, tested),) = divided_within([y], test=0.2)
    assert (len(train), len(held), len(tested)) == (16, 0, 4)


def test_seeds_redraw_the_division_and_nothing_else_does() -> None:
    y = [np.arange(40) % 2, np.arange(30) % 3]
    one, again, other = (divided_within(y, test=0.3, validation=0.3, seed=seed) for seed in (0, 0, 1))
    for client in range(2):
        for part in range(3):
            assert np.array_equal(one[client][part], again[client][part])
            assert not np.array_equal(one[client][part], other[client][part])
    fewer = divided_within(y[:1], test=0.3, validation=0.3)
    assert np.array_equal(fewer[0][2], one[0][2]), "a client's division does not depend on the others"
    without = divided_within(y, test=0.3)
    assert np.array_equal(without[0][2], one[0][2]), "nor its testing rows on validation"


@pytest.mark.parametrize(("rows", "sizes"), [(2, (1, 0, 1)), (3, (1, 1, 1)), (4, (2, 1, 1))])
def test_very_few_rows(rows: int, sizes: tuple[int, int, int]) -> None:
    (parts,) = divided_within([np.zeros(rows, dtype=np.int64)], test=0.2, validation=0.2)
    assert tuple(map(len, parts)) == sizes


def test_bad_divisions() -> None:
    y = np.zeros(5, dtype=np.int64)
    with pytest.raises(BadInput, match="client 'south' has 1 sample, too few"):
        divided_within([y, y[:1]], test=0.2, names=("north", "south"))
    with pytest.raises(BadInput, match="client 1 has no samples, too few"):
        divided_within([y, y[:0]], test=0.2)
    with pytest.raises(BadInput, match=r"share of testing samples is 1\.5"):
        divided_within([y], test=1.5)
    with pytest.raises(BadInput, match="samples = -1 is out of range"):
        divided_within([y], test=0.2, samples=-1)
    with pytest.raises(BadInput, match="share of testing samples is 0"):
        from_clients([(np.eye(5), y + np.arange(5) % 2)] * 2, 0)


# --- arrays ---


def numbered(*sizes: int) -> dict[str, tuple[Any, Any]]:
    """Clients a, b, …: sample j of all has the features j, −j and the label j mod 2."""
    ends = np.cumsum([0, *sizes])
    rows = [np.arange(start, end) for start, end in pairwise(ends)]
    return {chr(97 + i): (np.stack([1.0 * j, -1.0 * j], 1), j % 2) for i, j in enumerate(rows)}


def ids(clients: Clients | None, client: int) -> set[int]:
    assert clients is not None
    return {int(x) for x in clients.x[clients.rows(client), 0]}


def test_from_clients_without_testing_clients() -> None:
    federation = from_clients(numbered(20, 10), validation=0.25, preprocess="none", seed=3)
    assert federation.train.names == federation.test.names == ("a", "b")
    assert federation.paired
    assert federation.train.sizes.tolist() == [12, 6]
    assert federation.test.sizes.tolist() == [4, 2]
    assert federation.validation is not None
    assert federation.validation.sizes.tolist() == [4, 2]
    for client, rows in ((0, range(20)), (1, range(20, 30))):
        parts = [ids(part, client) for part in (federation.train, federation.validation, federation.test)]
        assert sum(map(len, parts)) == len(rows)
        assert set.union(*parts) == set(rows)
    labels = federation.train.x[:, 0].numpy() % 2
    assert np.array_equal(labels, federation.train.y.numpy())
    listed = from_clients(list(numbered(20, 10).values()), 0.2, validation=0.25, preprocess="none", seed=3)
    assert listed.train.names == ()
    assert listed.train.x.equal(federation.train.x)


def test_testing_clients_by_name() -> None:
    train, test = numbered(6, 4), numbered(4, 8)
    federation = from_clients(train, {"b": test["b"], "a": test["a"]}, preprocess="none")
    assert federation.test.names == ("a", "b")
    assert federation.test.sizes.tolist() == [4, 8]
    with pytest.raises(BadInput, match="client 'b' is only among the training or the testing clients"):
        from_clients(train, {"a": test["a"]})
    with pytest.raises(BadInput, match="both be lists, or both dictionaries"):
        from_clients(train, list(test.values()))


def test_bad_arrays_name_the_client() -> None:
    x, y = np.eye(4), np.arange(4) % 2
    broken = np.where(np.eye(4) == 1, np.nan, 0.5)
    with pytest.raises(BadInput, match=r"training client 'south' has NaN .*the first is feature 0 of sample 0"):
        from_clients({"north": (x, y), "south": (broken, y)})
    with pytest.raises(BadInput, match="training client 1 has NaN"):
        from_clients([(x, y), (broken, y)])
    with pytest.raises(BadInput, match=r"training client 'south' has float64 samples of shape .* client 'north'"):
        from_clients({"north": (x, y), "south": (x[:, :2], y)})
    with pytest.raises(BadInput, match="training client 'south' is not a pair"):
        from_clients({"north": (x, y), "south": 3})
    with pytest.raises(BadInput, match="training client 'south' has no label for sample 1"):
        from_clients({"north": (x, y), "south": (x, [0, np.nan, 1, 0])})
    with pytest.raises(BadInput, match="target = 'y' names a column, but clients are arrays"):
        from_clients({"north": (x, y), "south": (x, y)}, target="y")


def test_nan_in_a_federation_names_client_and_feature() -> None:
    good = from_clients(numbered(5, 5), 0.2)
    x = good.train.x.clone()
    x[good.train.rows(1).start + 2, 1] = np.nan
    clients = Clients(x, good.train.y, good.train.offsets, good.train.names)
    with pytest.raises(BadInput, match=r"NaN .*the first is feature 1 of sample 2 of client 'b'"):
        Federation(clients, good.test, 2, (2,), good.shift, good.scale)


def test_npz_files(tmp_path: Path) -> None:
    for name, (x, y) in numbered(8, 6).items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    federation = from_folder(tmp_path, preprocess="none")
    assert federation.train.names == ("a", "b")
    assert federation.encoding is None
    assert (federation.train.sizes + federation.test.sizes).tolist() == [8, 6]
    x, y = numbered(8)["a"]
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:3], y_test=y[:3])
    with pytest.raises(BadInput, match=r"client 'b' has no testing samples .* but others have"):
        from_folder(tmp_path)
    np.savez(tmp_path / "b.npz", x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
    apart = from_folder(tmp_path)
    assert (apart.train.sizes.tolist(), apart.test.sizes.tolist()) == ([8, 8], [3, 4])
    np.savez(tmp_path / "b.npz", x=x)
    with pytest.raises(BadInput, match=r"b\.npz has no array 'y'"):
        from_folder(tmp_path)


# --- tables ---


def frames(rows: int = 30) -> dict[str, pd.DataFrame]:
    """Two hospitals: `n` numbers all rows, and the target `ill` is a word."""
    rng = np.random.default_rng(0)
    found = {}
    for i, name in enumerate(("north", "south")):
        n = np.arange(rows) + i * rows
        ward = rng.choice(["a", "b"], rows) if i == 0 else rng.choice(["a", "c"], rows)
        found[name] = pd.DataFrame({"n": n * 1.0, "ward": ward, "ill": np.where(n % 3 == 0, "yes", "no")})
    return found


def test_frames_by_hand() -> None:
    """Numbers are standardised by the training rows alone, and testing rows by the same numbers."""
    federation = from_clients(frames(), target="ill", validation=0.2, seed=1)
    encoding = federation.encoding
    assert encoding is not None
    assert encoding.features == ("n", "ward = a", "ward = b", "ward = c")
    assert (federation.target.name, federation.target.names) == ("ill", ("no", "yes"))
    assert federation.shape == (4,)
    step = encoding.steps[0]
    raw = federation.train.x[:, 0].double().numpy() * step.scale + step.shift
    assert raw.mean() == pytest.approx(step.shift, abs=1e-4)
    assert raw.std() == pytest.approx(step.scale, rel=1e-4)
    everything: list[int] = []
    for part in (federation.train, federation.validation, federation.test):
        assert part is not None
        n = np.round(part.x[:, 0].double().numpy() * step.scale + step.shift).astype(int)
        assert np.array_equal(n % 3 == 0, part.y.numpy() == 1), "rows keep their target"
        everything += n.tolist()
    assert sorted(everything) == list(range(60))
    np.testing.assert_array_equal(
        encoding.transform(frames()["south"][:5]),
        encoding.transform({"n": [30, 31, 32, 33, 34], "ward": list(frames()["south"]["ward"][:5])}),
    )


def test_summaries_are_of_training_rows_only() -> None:
    """A huge number and a word in a testing row of north leave the encoding as it is."""
    plain = from_clients(frames(), target="ill", seed=1)
    assert plain.encoding is not None
    step, changed = plain.encoding.steps[0], frames()
    tested = plain.test.x[plain.test.rows(0), 0].double().numpy() * step.scale + step.shift
    row = round(float(tested[0]))
    changed["north"].loc[row, ["n", "ward"]] = [1e6, "unheard of"]
    other = from_clients(changed, target="ill", seed=1)
    assert other.encoding == plain.encoding
    assert other.train.x.equal(plain.train.x)
    assert other.test.x[0, 0] > 1e4
    assert not other.test.x[0, 1:].any(), "an unknown category is none of the known ones"


def test_one_table_is_as_many_tables() -> None:
    whole = pd.concat([frame.assign(site=name) for name, frame in frames().items()])
    mixed = whole.sample(frac=1, random_state=0).sort_values("n", kind="stable")
    one = from_table(mixed, client="site", target="ill", validation=0.2)
    many = from_clients(frames(), target="ill", validation=0.2)
    assert one.train.names == many.train.names
    assert one.encoding == many.encoding
    assert one.train.x.equal(many.train.x)


def test_table_files(tmp_path: Path) -> None:
    whole = pd.concat([frame.assign(client=name) for name, frame in frames().items()])
    whole.to_csv(tmp_path / "all.csv", index=False)
    whole.to_parquet(tmp_path / "all.parquet")
    one = from_table(tmp_path / "all.csv", target="ill")
    assert one.train.x.equal(from_table(str(tmp_path / "all.parquet"), target="ill").train.x)
    assert one.name == "all"
    with pytest.raises(BadInput, match=r"no column 'hospital'.*name one of its columns as data\.client"):
        from_table(tmp_path / "all.csv", client="hospital", target="ill")
    with pytest.raises(BadInput, match=r"no column called client: name one of its columns as data.client"):
        from_table(whole.drop(columns="client"), target="ill")
    with pytest.raises(BadInput, match="the table names no client in row 31"):
        from_table(whole.assign(client=["a"] * 30 + [None] * 30), target="ill")
    with pytest.raises(BadInput, match="rows of 1 client"):
        from_table(whole.assign(client="a"), target="ill")
    with pytest.raises(BadInput, match="'client' is both the client and the target"):
        from_table(whole, target="client")


def test_clients_that_may_be_one_are_said() -> None:
    north, south = frames().values()
    with pytest.warns(UserWarning, match="clients 'North' and 'north' differ in capital letters only"):
        from_clients({"North": north, "south": south, "north": north}, target="ill")


def test_a_target_that_one_client_lacks() -> None:
    north, south = frames().values()
    with pytest.raises(BadInput, match=r"client 'south' has no column 'ill', the target of client 'north': add it"):
        from_clients({"north": north, "south": south.drop(columns="ill")}, target="ill")


def test_the_usual_targets() -> None:
    named = {name: frame.rename(columns={"ill": "Outcome"}) for name, frame in frames().items()}
    assert from_clients(named).target.name == "Outcome"
    with pytest.raises(BadInput, match=r"no column called target or label .*its columns are n, ward, ill"):
        from_clients(frames())
    two = {name: frame.assign(label=1) for name, frame in named.items()}
    with pytest.raises(BadInput, match=r"several candidates for the target.*Outcome, label"):
        from_clients(two)
    with pytest.raises(BadInput, match=r"no column 'il' \(did you mean 'ill'\?\)"):
        from_clients(frames(), target="il")


def test_a_number_is_predicted() -> None:
    federation = from_clients(frames(), target="n", task="regression")
    assert federation.target.is_number
    assert federation.classes == 1
    values = np.concatenate([part.y.numpy() for part in (federation.train, federation.test)])
    raw = values * federation.target.scale + federation.target.shift
    assert np.allclose(np.sort(raw), np.arange(60), atol=1e-3)


def changed(**columns: Any) -> dict[str, pd.DataFrame]:
    """The frames with other columns at south."""
    found = frames()
    return {**found, "south": found["south"].assign(**columns)}


@pytest.mark.parametrize(
    ("clients", "options", "words"),
    [
        (changed(n="x"), {}, r"'n' holds numbers at client 'north' but text \(such as 'x'\) at client 'south'"),
        (changed(n=[str(i) for i in range(30)]), {}, "'n' of client 'south' holds numbers as text, such as '0'"),
        (changed(more=1), {}, "client 'north' has no column 'more', which client 'south' has: add it there"),
        (changed(ill=None), {}, "no value of the target 'ill' in 30 of 30 rows"),
        (changed(ill=3), {}, "'ill' holds numbers at client 'south' but text"),
        (frames(), {"drop": ["x"]}, "no column 'x' to leave out"),
        (frames(), {"drop": ["ill"]}, "'ill' is both data.target and in data.drop"),
        (frames(), {"categories": ["x"]}, "no column 'x' to take as categories"),
        (frames(), {"preprocess": "half"}, "'half' is for pixels"),
        (frames(), {"preprocess": "double"}, "no preprocessing 'double'"),
        (frames(), {"test": 1.0}, "share of testing samples is 1"),
    ],
)
def test_clients_that_disagree(clients: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        from_clients(clients, **{"target": "ill", **options})


def test_ways_out_that_are_named_work() -> None:
    assert from_clients(changed(n="x"), target="ill", categories=["n"]).features > 3
    assert from_clients(changed(n="x"), target="ill", drop=["n"]).features == 3
    assert from_clients(changed(more=1), target="ill", drop=["more"]).features == 4
    odd = changed(more=[object()] * 30)
    assert from_clients(
        {k: f.assign(more=1) if k == "north" else f for k, f in odd.items()}, target="ill", drop=["more"]
    )


def test_missing_at_one_client_and_preprocessing_none() -> None:
    federation = from_clients(changed(n=None), target="ill", preprocess="none")
    assert federation.encoding is not None
    assert federation.encoding.features[:2] == ("n", "n is missing")
    south = federation.train.x[federation.train.rows(1)]
    assert (south[:, 1] == 1).all()
    assert set(south[:, 0].tolist()) == {float(np.float32(federation.encoding.steps[0].fill))}
    assert federation.train.x[federation.train.rows(0), 0].max() > 5


def test_own_clients_in_a_partition(tmp_path: Path) -> None:
    """Few samples, newcomers, kinds and pooling work as with data sets; imbalance has no meaning."""
    for name, frame in {**frames(), "west": frames()["north"], "east": frames()["south"]}.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    own = read_clients(tmp_path, TableOptions(target="ill"))
    few = federate(own, samples=10, validation=0.2, newcomers=0.25, kinds=2)
    assert few.train.sizes.tolist() == [8] * 4
    assert few.validation is not None
    assert few.validation.sizes.tolist() == [2] * 4
    assert few.test.sizes.tolist() == [6] * 4
    assert len(few.newcomers) == 1
    assert few.kinds == (0, 1, 0, 1)
    assert len(federate(own, pooled=True).train) == 2
    for wrong in ({"class_imbalance": 1.0}, {"size_imbalance": 1.0}, {"clusters": 2}, {"group": "x"}):
        with pytest.raises(BadInput, match=f"leave out partition.{next(iter(wrong))}"):
            federate(own, **wrong)


def test_public_names() -> None:
    assert fedkin.from_folder is from_folder
    assert fedkin.from_table is from_table


# --- preprocessing that is chosen by the data ---


def test_chosen_preprocessing() -> None:
    small = np.array([[0.0, 1.0], [0.5, 0.2]])
    assert chosen_preprocessing("none", small) == "none"
    assert chosen_preprocessing("auto", small) == "half"
    assert chosen_preprocessing("auto", small, small + 1) == "standardise"
    assert chosen_preprocessing("auto", small - 0.1) == "standardise"
    assert chosen_preprocessing("auto", np.array([[3, 7]])) == "none"
    assert chosen_preprocessing("auto", np.array([[3, 7]], dtype=np.uint8)) == "half"
    assert chosen_preprocessing("auto", np.zeros((2, 3, 3)) + 200.0) == "half"
    assert chosen_preprocessing("auto", np.array([[True, False]])) == "half"


def test_messages_of_tables_come_from_preprocessed_features() -> None:
    """In raw units the second feature, around 1,000, would be the message of every client."""
    rng = np.random.default_rng(0)
    clients = [(rng.normal([i, 1000.0], [1, 50], (40, 2)), np.arange(40) % 2) for i in range(3)]
    federation = from_clients(clients, preprocess="standardise")
    found = messages(federation)
    rows = federation.train.x[federation.train.rows(1)].numpy()
    np.testing.assert_allclose(found[1], message(rows))
    assert abs(messages(federation, "raw")[1, 1]) > 0.99
    digits = federate(fedkin.load("digits"), clients=5)
    np.testing.assert_array_equal(messages(digits), messages(digits, "raw"))
