"""Choices by validation losses, for all clients and for single ones."""

import pytest
import torch
from torch import Tensor

from fedkin.algorithms.choosing import Halves, client_choices, common_choice


def halves(first: Tensor, second: Tensor | None = None, samples: float = 10) -> Halves:
    """As clients send them: (m, J) each."""
    second = first if second is None else second
    return Halves.unpacked(torch.cat([first, second, torch.full((*first.shape[:-1], 1), samples)], dim=-1))


def offered(options: int) -> Tensor:
    return torch.ones(1, options, dtype=torch.bool)


def test_a_common_choice_by_hand() -> None:
    """Of three options the third has the lowest mean, 1.0. The first exceeds it by 0, 0.2, 0.4, 0.2: mean 0.2, standard
    error 0.163/2 = 0.082: worse. The second by 0.1, −0.1, 0.1, 0: mean 0.025, error 0.048: as good, and simpler.
    """
    third = torch.tensor([1.0, 0.9, 1.1, 1.0])
    first, second = third + torch.tensor([0, 0.2, 0.4, 0.2]), third + torch.tensor([0.1, -0.1, 0.1, 0])
    losses = torch.stack([first, second, third], dim=-1)
    assert common_choice(halves(losses), offered(3)).tolist() == [[1]]
    assert common_choice(halves(losses), torch.tensor([[True, False, True]])).tolist() == [[2]]
    lanes = torch.stack([losses, losses.flip(-1)])
    assert common_choice(halves(lanes), offered(3)).flatten().tolist() == [1, 0], "each lane chooses by itself"


def test_the_mean_of_unequal_halves() -> None:
    """Three samples: two in the first half with mean 1, one in the second with 4: (2·1 + 4)/3 = 2."""
    assert halves(torch.tensor([[1.0]]), torch.tensor([[4.0]]), samples=3).mean.tolist() == [[2]]


def test_clients_without_samples_do_not_count() -> None:
    """The second client reports zeros. By the first, option 1 is better."""
    numbers = torch.tensor([[2.0, 1, 2, 1, 5], [2.1, 1, 2.1, 1, 5], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    assert common_choice(Halves.unpacked(numbers), offered(2)).tolist() == [[1]]
    assert client_choices(Halves.unpacked(numbers), offered(2), torch.tensor([[1]])).flatten().tolist() == [1] * 5


def test_a_diverged_model_does_not_decide_for_all() -> None:
    losses = torch.tensor([[1.0, 0.1], [1.0, 0.1], [1.0, float("nan")], [1.0, float("inf")]])
    assert halves(losses).mean.max() == 100, "a hundred times the median of the first option"
    assert halves(1e6 * losses).mean.max() == 1e8, "whatever the unit"
    assert common_choice(halves(losses), offered(2)).tolist() == [[0]]


def test_client_choices_by_hand() -> None:
    """Advantages of option 1 over option 0 at four clients of 8 samples: halves (−1, −1), (1, 1), (−1, −1), (1, 1).

    μ = 0 with standard error √(4/3)/2 = 0.577, σ² = 0, so ρ = 1 and the expectations are −1, 1, −1, 1; with the error
    of μ the bounds are −0.423 and 1.577: clients 0 and 2 leave. If the halves disagree, (−1, 1), (1, −1), …, then
    τ² = 0 and nobody does.
    """
    d = torch.tensor([-1.0, 1, -1, 1])
    first = torch.stack([torch.full((4,), 5.0), 5 + d], dim=-1)
    second = torch.stack([torch.full((4,), 5.0), 5 - d], dim=-1)
    common = torch.tensor([[0]])
    assert client_choices(halves(first, samples=8), offered(2), common).flatten().tolist() == [1, 0, 1, 0]
    assert client_choices(halves(first, second, samples=8), offered(2), common).flatten().tolist() == [0] * 4


def test_shrinkage_by_hand() -> None:
    """Halves (−3, −1), (3, 1), (−1, −3), (1, 3) of 2 samples each: d = ∓2, σ² = Σ 4 / Σ (1/1 + 1/1) = 16/8 = 2, τ² = 3.

    ρ = 3/(3 + 2/2) = 3/4: expectation −1.5, variance 3/4 · 1 + error² = 0.75 + (4·4/3)/4 = 2.083, bound
    −1.5 + 1.44 < 0: clients 0 and 2 leave. With halves (−3.5, −0.5), … and the same d they do not: σ² = 4.5, τ² = 1.75,
    ρ = 1.75/(1.75 + 2.25), bound −0.875 + 1.52 > 0.
    """
    common = torch.tensor([[0]])
    for apart, expected in ((1.0, [1, 0, 1, 0]), (1.5, [0, 0, 0, 0])):
        one = torch.tensor([-2 - apart, 2 + apart, -2 + apart, 2 - apart])
        two = torch.tensor([-2 + apart, 2 - apart, -2 - apart, 2 + apart])
        base = torch.full((4,), 9.0)
        losses = halves(torch.stack([base, 9 + one], dim=-1), torch.stack([base, 9 + two], dim=-1), samples=2)
        assert client_choices(losses, offered(2), common).flatten().tolist() == expected


@pytest.mark.parametrize(("real", "share"), [(0.0, 0.05), (1.0, 0.35)])
def test_where_clients_do_not_differ_few_leave(real: float, share: float) -> None:
    """Losses of 5 options at 100 clients with 10 noisy samples each: without real differences hardly anybody leaves the
    common option; with real ones many do, and are better off by it.
    """
    rng = torch.Generator().manual_seed(0)
    left, gained = 0.0, 0.0
    for _ in range(20):
        truth = real * torch.randn(100, 5, generator=rng).double()
        one, two = (truth + torch.randn(100, 5, generator=rng).double() / 5**0.5 + 10 for _ in range(2))
        losses = halves(one, two)
        common = common_choice(losses, offered(5))
        chosen = client_choices(losses, offered(5), common)
        left += float((chosen != common).double().mean()) / 20
        gained += float((truth.gather(-1, chosen) - truth.gather(-1, common.expand(100, 1))).mean()) / 20
    assert left <= share if real == 0 else left >= share
    assert gained <= (0.01 if real == 0 else -0.5)


def test_relabelling_clients_relabels_choices() -> None:
    rng = torch.Generator().manual_seed(1)
    one, two = (torch.randn(30, 4, generator=rng) for _ in range(2))
    order = torch.randperm(30, generator=rng)
    a, b = halves(one, two), halves(one[order], two[order])
    common = common_choice(a, offered(4))
    assert torch.equal(common, common_choice(b, offered(4)))
    assert torch.equal(client_choices(a, offered(4), common)[order], client_choices(b, offered(4), common))
