"""A mixture of shared models for every client: FedEM."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.algorithms.base import Algorithm, Gradient, Hyper, Losses, ServerState, Vector, Vectors, check_range
from fedkin.algorithms.rounds import Round
from fedkin.algorithms.search import OneOf
from fedkin.errors import BadInput
from fedkin.types import Tensors


@dataclass(frozen=True, kw_only=True)
class FedEM(Algorithm):
    """θₘ ← θₘ − γ ∇ Σₛ qₛₘ ℓₛ(θₘ)/n with qₛₘ ∝ πₘ exp(−ℓₛ(θₘ)), averaged; a client mixes them (Marfoq et al. 2021).

    All clients share M components, and each has shares π of its own. A client's round is one of expectation
    maximisation: with the received components, qₛₘ is the probability that its sample s comes from component m (E);
    π becomes the mean of q over its samples, and every component takes the local steps, with the loss of each sample
    multiplied by qₛₘ (M). The server averages each component over the clients. What a client predicts is the mixture
    Σₘ πₘ p(y | x; θₘ).

    components  M; 1 is FedAvg
    spread      components start at the initial model plus Gaussian noise of this standard deviation, less its mean over
                them: equal ones would stay equal

    exp(−ℓ) is the likelihood of a sample: of a class its probability; of a number, whose loss is squared, a Gaussian
    density of the target's own standard deviation, and what is mixed are the predicted numbers. The global model, which
    is only measured, is the plain mean of the components. Which component learns what depends on the noise, and kinds
    of clients may share one: try other seeds and choose by the loss on training or validation samples. Another local
    optimizer would move only one of the components and is refused.
    """

    search = {**Algorithm.search, "components": OneOf((2, 3, 4))}  # noqa: RUF012 - a constant
    neutral = {"components": 1}  # noqa: RUF012 - a constant
    plain_steps = True
    components: int = 3
    spread: Hyper = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.spread, "spread", above=0)
        if self.components < 1:
            raise BadInput(f"components = {self.components} is out of range: it must be at least 1")

    @property
    def mixture(self) -> int:
        return self.components

    @property
    def _names(self) -> list[str]:
        """Names of the components in messages. The first is `model`, at which local steps start."""
        return ["model", *(f"{m}" for m in range(1, self.components))]

    def start(self, model: Tensor, round: Round) -> ServerState:
        noise = round.random("components").standard_normal((self.components, model.shape[-1]))
        return {"model": model, "components": model + self.spread * model.new_tensor(noise - noise.mean(0))}

    def remember(self, model: Tensor) -> Tensors:
        return {"shares": model.new_full((*model.shape[:-1], self.components), 1 / self.components)}

    def send(self, server: ServerState, round: Round) -> Tensors:
        components = server["components"].split(1, dim=-2)
        return {name: round.spread(one) for name, one in zip(self._names, components, strict=True)}

    def begin(self, got: Tensors, memory: Tensors, losses: Losses) -> tuple[Tensors, Tensors]:
        if self.components == 1:
            return got, memory
        each = torch.stack([losses(got[name]) for name in self._names])  # (M, …, m, n)
        q = torch.softmax(memory["shares"].log().movedim(-1, 0).unsqueeze(-1) - each, dim=0)
        samples = losses.samples.to(each)
        q = q * (torch.arange(each.shape[-1], device=each.device) < samples)  # without the padding
        shares = (q.sum(-1) / samples.squeeze(-1)).movedim(0, -1)
        moving = {name: got[name] for name in self._names[1:]}
        return {"model": got["model"]}, {"shares": shares, **moving, **{f"q{m}": one for m, one in enumerate(q)}}

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        if self.components == 1:
            return super().step(w, got, memory, gradient)
        at = {"model": w, **memory}
        new = {
            name: at[name] - self.step_size * gradient(at[name], weights=memory[f"q{m}"])
            for m, name in enumerate(self._names)
        }
        return new.pop("model"), {**memory, **new}

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        return {"model": w, **{name: memory[name] for name in self._names[1:]}}, {"shares": memory["shares"]}

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        components = torch.cat([round.average(replies[name]) for name in self._names], dim=-2)
        return {"model": components.mean(-2, keepdim=True), "components": components}

    def own(self, got: Tensors, memory: Tensors) -> Tensor:
        if self.components == 1:
            return got["model"]
        return torch.cat([*(got[name] for name in self._names), memory["shares"]], dim=-1)
