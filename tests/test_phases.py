"""How long a comparison will take, estimated from what is done."""

import pytest

from fedkin.arena.phases import Phase, Phases


def test_the_estimate_by_hand() -> None:
    """Phases of 10 and 2 · 3 rounds: after 5 rounds in 5 seconds 5 + 6 are left, whatever was kept."""
    now = [0.0]
    said: list[tuple[str, float, float | None]] = []
    phases = Phases(
        [Phase("one", 2, 5, 1.0), Phase("two", 1, 3, 2.0)], lambda *words: said.append(words), lambda: now[0]
    )
    phases.next("one")
    for _ in range(5):
        now[0] += 1
        phases.round("run", {})
    phases.end("run", {"status": "finished"}, False)
    assert said[-1][0] == "one: 1 of 2 runs"
    assert said[-1][1:] == pytest.approx((5 / 16, 11.0))
    phases.end("kept", {"status": "finished"}, True)
    assert phases.left == pytest.approx(6.0)  # five kept rounds took no time
    phases.next("two")
    assert phases.left == pytest.approx(6.0)


def test_no_estimate_from_the_first_of_many_runs() -> None:
    phases = Phases([Phase("one", 100, 3, 1.0)], lambda *_: None, lambda: 5.0)
    phases.next("one")
    left = []
    for _ in range(5):
        phases.round("run", {})
        left.append(phases.left)
    assert left == [None, None, None, 0.0, 0.0]  # the clock stands still: more than a hundredth of 300 is known


def test_a_phase_says_how_fast_it_is() -> None:
    """Ten rounds of a second each; in the next phase they take 3, not the expected 2: after two of twenty, 18 · 3."""
    now = [0.0]
    phases = Phases([Phase("one", 1, 10, 1.0), Phase("two", 2, 10, 2.0)], lambda *_: None, lambda: now[0])
    phases.next("one")
    for _ in range(10):
        now[0] += 1
        phases.round("run", {})
    phases.next("two")
    assert phases.left == pytest.approx(40.0)
    now[0] += 3
    phases.round("run", {})
    assert phases.left == pytest.approx(13 / 12 * 38)  # all that is done in 13 seconds
    now[0] += 3
    phases.round("run", {})
    assert phases.left == pytest.approx(54.0)
