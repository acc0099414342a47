"""What every method of a comparison gets: the same number of trials, and of fresh seeds for the best of them."""

from dataclasses import dataclass

from fedkin.errors import BadInput, nearest


@dataclass(frozen=True)
class Budget:
    """What every method gets.

    trials  number of settings that are tried
    seeds   number of fresh seeds on which the best is run again
    """

    trials: int
    seeds: int

    def __post_init__(self) -> None:
        if self.trials < 1 or self.seeds < 1:
            raise BadInput("a method needs at least one trial and one seed: give at least 1")


BUDGETS = {"quick": Budget(4, 3), "standard": Budget(16, 5), "thorough": Budget(64, 10)}


def budget_of(name: str, trials: int | None = None, seeds: int | None = None) -> Budget:
    """The budget of this name, with other numbers if they are given."""
    if name not in BUDGETS:
        raise BadInput(f"there is no budget '{name}'{nearest(name, BUDGETS)}")
    usual = BUDGETS[name]
    return Budget(usual.trials if trials is None else trials, usual.seeds if seeds is None else seeds)
