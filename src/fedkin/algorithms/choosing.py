"""Choices by validation losses: one for all clients, and for single clients where their own samples say otherwise.

Losses are means over two halves of each client's validation samples. How far the halves of a client agree shows how
much of a difference between clients is real, and how much is chance.

Shapes: m clients, J options of which the first is the simplest, … lanes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# Losses above so many times the median of the first option, and infinite ones, count as this: one diverged model does
# not decide for all.
MOST_TIMES = 100.0


@dataclass(frozen=True)
class Halves:
    """Validation losses of J options at m clients.

    first, second  mean loss over the samples with even and with odd places, (…, m, J); they are the same if there is
                   only one sample
    samples        number of validation samples of each client, (…, m, 1)
    """

    first: Tensor
    second: Tensor
    samples: Tensor

    @classmethod
    def unpacked(cls, numbers: Tensor) -> "Halves":
        """From (…, m, 2J + 1), as clients send them: both halves, and the number of samples."""
        options = numbers.shape[-1] // 2
        losses, samples = numbers[..., :-1].double(), numbers[..., -1:].double()
        known = torch.where(samples > 0, losses[..., :1], torch.nan)
        middle = torch.nan_to_num(known.nanmedian(dim=-2, keepdim=True).values, nan=1.0, posinf=1.0)
        losses = torch.minimum(torch.nan_to_num(losses, nan=torch.inf), MOST_TIMES * middle.clamp(min=1e-30))
        return cls(losses[..., :options], losses[..., options:], samples)

    @property
    def sizes(self) -> tuple[Tensor, Tensor]:
        """Number of samples in each half, (…, m, 1) each."""
        return (self.samples + 1).div(2, rounding_mode="floor"), self.samples.div(2, rounding_mode="floor")

    @property
    def mean(self) -> Tensor:
        """Mean loss over all samples, (…, m, J)."""
        one, two = self.sizes
        return (one * self.first + two * self.second) / self.samples.clamp(min=1)

    def only(self, options: Tensor) -> "Halves":
        """Of some options, given by their places for each client, (…, m, J')."""
        return Halves(self.first.gather(-1, options), self.second.gather(-1, options), self.samples)


def common_choice(losses: Halves, offered: Tensor, tolerance: float = 1.0) -> Tensor:
    """The option for all clients, (…, 1, 1): the simplest that is as good as the best.

    offered  which options there are, (…, 1, J)

    The best has the lowest mean loss over the clients. Another option is as good if its mean excess over the best is
    at most one standard error of that excess, or as many as the tolerance says.
    """
    counts = losses.samples > 0
    mean, _ = _mean_and_error(losses.mean, counts)
    best = torch.where(offered, mean, torch.inf).argmin(-1, keepdim=True)
    excess, error = _mean_and_error(_over(losses.mean, best), counts)
    return (offered & (excess <= tolerance * error)).int().argmax(-1, keepdim=True)


def client_choices(losses: Halves, offered: Tensor, common: Tensor) -> Tensor:
    """The option of each client, (…, m, 1): the common one, unless another is better for this client.

    The advantage of option j over the common one at client i is dᵢⱼ = μⱼ + δᵢⱼ + noise: μⱼ for all clients, δ of
    variance τⱼ² for this client, and noise of variance σⱼ²/nᵢ with its nᵢ samples. The two halves of a client's
    samples have the same δ and different noise, so that

        σⱼ² = Σᵢ (d′ᵢⱼ − d″ᵢⱼ)² / Σᵢ (1/n′ᵢ + 1/n″ᵢ)     τⱼ² = mean of (d′ᵢⱼ − μⱼ)(d″ᵢⱼ − μⱼ), at least 0

    The expected advantage is then μⱼ + ρᵢⱼ (dᵢⱼ − μⱼ) with ρᵢⱼ = τⱼ² / (τⱼ² + σⱼ²/nᵢ), its variance ρᵢⱼ σⱼ²/nᵢ. A
    client leaves the common option if the expected advantage of another exceeds one standard deviation.
    """
    one, two = losses.sizes
    counts, both = losses.samples > 0, losses.samples > 1
    d, first, second = (_over(part, common) for part in (losses.mean, losses.first, losses.second))
    mean, error = _mean_and_error(d, counts)
    noise = (both * (first - second) ** 2).sum(-2, keepdim=True) / (
        both * (1 / one.clamp(min=1) + 1 / two.clamp(min=1))
    ).sum(-2, keepdim=True).clamp(min=1e-30)
    agreement = both * (first - mean) * (second - mean)
    between = (agreement.sum(-2, keepdim=True) / both.sum(-2, keepdim=True).clamp(min=1)).clamp(min=0)
    of_client = noise / losses.samples.clamp(min=1)  # σⱼ²/nᵢ
    share = counts * between / (between + of_client).clamp(min=1e-30)
    expected = mean + share * (d - mean)
    bound = expected + (share * of_client + error**2).sqrt()  # advantages are negative: losses are lower
    bound = torch.where(offered, bound, torch.inf).scatter(-1, common.expand(*bound.shape[:-1], 1), 0.0)
    # The common option where nothing is better, also with a bound of exactly 0.
    least, place = bound.min(-1, keepdim=True)
    return torch.where(least < 0, place, common)


def _over(losses: Tensor, option: Tensor) -> Tensor:
    """Losses less that of one option, (…, m, J)."""
    return losses - losses.gather(-1, option.expand(*losses.shape[:-1], 1))


def _mean_and_error(values: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over the clients that count, (…, 1, J), and its standard error."""
    number = counts.sum(-2, keepdim=True).clamp(min=1)
    mean = (counts * values).sum(-2, keepdim=True) / number
    spread = (counts * (values - mean) ** 2).sum(-2, keepdim=True) / (number - 1).clamp(min=1)
    return mean, (spread / number).sqrt()
