"""MOCHA as the benchmark Motley computes it, which is not what its publication says: no algorithm to use."""

from dataclasses import dataclass

from torch import Tensor

from fedkin.algorithms.multitask import MOCHA


@dataclass(frozen=True, kw_only=True)
class BenchmarkMOCHA(MOCHA):
    """MOCHA with Ω in the place of its inverse: wᵢ ← wᵢ − γKμ Σₙ Ω_in wₙ with Ω = (WᵀW)^½/tr (WᵀW)^½.

    The penalty is μ/2 tr(W Ω Wᵀ) in the published code. Its gradient is long along what the models have in common and
    short along their differences, where that of tr(W Ω⁻¹ Wᵀ) is long along the differences, which it removes. So the
    best μ is the smallest, which is training alone.
    """

    def factors(self, shares: Tensor) -> Tensor:
        return shares
