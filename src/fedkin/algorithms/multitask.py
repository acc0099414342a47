"""A model for every client, coupled with those of others: MR-MTL, L2GD, FedU, MOCHA, FedAMP, CFL."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from fedkin.algorithms.base import Algorithm, Gradient, Hyper, Losses, ServerState, Vector, Vectors, check_range
from fedkin.algorithms.kinship import mixed_models
from fedkin.algorithms.rounds import Round
from fedkin.algorithms.rows import ClientRows
from fedkin.algorithms.search import Between, OneOf
from fedkin.errors import BadInput
from fedkin.types import Floats, Integers, Tensors


@dataclass(frozen=True, kw_only=True)
class MRMTL(Algorithm):
    """v ← v − γ (∇fᵢ(v) + λ (v − v̄)) from the client's own last model, which it uses; v̄ = Σ pᵢvᵢ over all clients.

    Mean-regularised multi-task learning (Evgeniou and Pontil 2004), also known as stateful pFedMe. There is no global
    model apart from the average v̄; if clients are sampled, it is of the last models that they have sent.

    pull  λ ≥ 0, which draws the clients' models to each other; at 0 clients train alone
    """

    search = {**Algorithm.search, "pull": Between(1e-3, 3.0)}  # noqa: RUF012 - a constant
    pull: Hyper = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.pull, "pull", at_least=0)

    def remember(self, model: Tensor) -> Tensors:
        return {"own": model}

    def begin(self, got: Tensors, memory: Tensors, losses: Losses) -> tuple[Tensors, Tensors]:
        return {"model": memory["own"], "mean": got["model"]}, memory

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        return w - self.step_size * (gradient(w) + self.pull * (w - got["mean"])), memory

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        return {"change": w - memory["own"]}, {"own": w}

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        shares = shares_of(round)
        part = float(shares[round.who].sum() / shares.sum())
        return {"model": server["model"] + part * round.average(replies["change"])}

    def own(self, got: Tensors, memory: Tensors) -> Tensor:
        return memory["own"]


@dataclass(frozen=True, kw_only=True)
class L2GD(MRMTL):
    """With probability q a round is v ← v − (γλ/q) (v − v̄), else local steps v ← v − γ/(1−q) ∇fᵢ(v).

    vᵢ is the model of client i, v̄ = Σ pᵢvᵢ over all clients; γ is η/N of Hanzely and Richtárik 2020, whose rounds have
    one step. The coin is tossed once for all clients and all runs of a seed. Bytes are counted where it changes: models
    go up after the last round of local steps, v̄ comes down in the first round without them. If clients are sampled, v̄
    is of the last models that were sent, and every round counts one way.

    pull   λ ≥ 0, which draws the clients' models to each other
    every  1/q ≥ 2, rounds from one average to the next in the mean
    """

    search = {**Algorithm.search, "pull": Between(0.01, 3.0), "every": OneOf((2, 4, 8))}  # noqa: RUF012 - a constant
    pull: Hyper = 1.0
    every: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 2:
            raise BadInput(f"every = {self.every} is out of range: it must be at least 2")

    def is_average(self, round: Round, later: int = 0) -> bool:
        """Whether clients move to the average in a round, or so many rounds later."""
        return bool(replace(round, number=round.number + later).random("coin").random() * self.every < 1)

    def exchanges(self, round: Round) -> tuple[bool, bool]:
        now, everyone = self.is_average(round), len(round) == np.count_nonzero(shares_of(round))
        known = everyone and (round.number == 0 or self.is_average(round, -1))  # v̄ has not changed since
        return now and not known, not now and (not everyone or self.is_average(round, 1))

    def send(self, server: ServerState, round: Round) -> Tensors:
        got = super().send(server, round)
        flag = got["model"].new_ones(*got["model"].shape[:-1], 1)
        return {**got, "average": flag} if self.is_average(round) else got

    def begin(self, got: Tensors, memory: Tensors, losses: Losses) -> tuple[Tensors, Tensors]:
        v = memory["own"]
        if "average" not in got:
            return {"model": v}, memory
        moved = v - self.step_size * self.pull * self.every * (v - got["model"])
        return {"model": moved, "average": got["average"]}, memory

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        if "average" in got:
            return w, memory
        return w - self.step_size * (self.every / (self.every - 1)) * gradient(w), memory


def shares_of(round: Round) -> Floats:
    """Weights of all clients, (C,), not normalised; 0 for newcomers."""
    return np.ones(round.clients) if round.shares is None else round.shares


@dataclass(frozen=True, kw_only=True)
class FedU(Algorithm):
    """Clients train their own models w; the server has wᵢ ← wᵢ − γKμ Σₙ a_in (wᵢ − wₙ) (Dinh et al. 2021).

    K is the number of local steps of client i. a_in are the mixing weights p_in/pᵢ of the graph, which sum to 1 over
    the neighbours n of i. wₙ is the last model of a neighbour; one that has sent none does not count.

    pull  μ ≥ 0, which draws the models of neighbours to each other; at 0 clients train alone
    """

    search = {**Algorithm.search, "pull": Between(1e-4, 0.1)}  # noqa: RUF012 - a constant
    plain_steps = True
    pull: Hyper = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.pull, "pull", at_least=0)

    def start(self, model: Tensor, round: Round) -> ServerState:
        return {"model": model, "models": ClientRows(model)}

    def send(self, server: ServerState, round: Round) -> Tensors:
        return {"model": server["models"].at(round.who)}

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        return {"model": w, "steps": steps.expand(*w.shape[:-1], 1)}, memory

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        known = server["models"].updated(round.who, replies["model"])
        length = self.step_size * self.pull * replies["steps"]
        moved = replies["model"] - length * self.coupling(known, replies["model"], round)
        return {"model": round.average(moved), "models": known.updated(round.who, moved)}

    def coupling(self, known: ClientRows, mine: Tensor, round: Round) -> Tensor:
        """The gradient of the coupling of models at those of the sampled clients, (…, m, P)."""
        rows = round.graph.mixing_rows(round.who, known.owners)
        total = mine.new_tensor(np.asarray(rows.sum(axis=1)).reshape(-1, 1))
        return total * mine - mixed_models([rows], known)

    def own(self, got: Tensors, memory: Tensors) -> Tensor:
        return got["model"]


@dataclass(frozen=True, kw_only=True)
class MOCHA(FedU):
    """As FedU with relationships that are learnt: wᵢ ← wᵢ − γKμ Σₙ Ω⁻¹_in wₙ, Ω = (WᵀW)^½/tr (WᵀW)^½ + εI.

    The columns of W are the last models of all clients that have sent one; Ω is computed anew in every round. This is
    the objective of Smith et al. 2017 (with the relationships of Zhang and Yeung 2010) in the primal, for any model;
    their solver works in the dual of linear models.

    pull   μ ≥ 0
    ridge  ε > 0, without which Ω has no inverse if there are more clients than parameters
    """

    ridge: Hyper = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.ridge, "ridge", above=0)

    def coupling(self, known: ClientRows, mine: Tensor, round: Round) -> Tensor:
        models = known.values
        gram = models.double() @ models.double().mT
        # The eigenvalues of a diverging lane are not needed, and would be an error.
        gram = torch.where(torch.isfinite(gram).all(-1, keepdim=True).all(-2, keepdim=True), gram, 0.0)
        squares, vectors = torch.linalg.eigh(gram)
        roots = squares.clamp(min=0).sqrt().unsqueeze(-2)
        factors = self.factors(roots / roots.sum(-1, keepdim=True).clamp(min=1e-300))
        rows = vectors[..., np.searchsorted(known.owners, round.who), :] * factors @ vectors.mT
        coupled: Tensor = rows.to(models) @ models
        return coupled

    def factors(self, shares: Tensor) -> Tensor:
        """Eigenvalues of the coupling Ω⁻¹, from those of (WᵀW)^½/tr (WᵀW)^½."""
        return 1 / (shares + self.ridge)


@dataclass(frozen=True, kw_only=True)
class FedAMP(Algorithm):
    """w ← w − γ (∇fᵢ(w) + λ (w − uᵢ)) from uᵢ, an average of models in which similar ones count more; clients use w.

    uᵢ = wᵢ + Σₙ ξ_in (wₙ − wᵢ) of the last models that other clients have sent, ξ_in = a/N exp(−‖wᵢ − wₙ‖²/σ) with N
    of them (Huang et al. 2021, whose α_k is aσ/N).

    pull   λ ≥ 0, coefficient of the proximal term
    share  a in [0, 1], the weight of all others together if their models are the same
    sigma  σ > 0, the squared distance at which the weight of a model falls to 1/e of that
    """

    search = {**Algorithm.search, "pull": Between(1e-3, 1.0), "sigma": Between(0.1, 100.0)}  # noqa: RUF012 - a constant
    pull: Hyper = 0.1
    share: Hyper = 0.5
    sigma: Hyper = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.pull, "pull", at_least=0)
        check_range(self.share, "share", at_least=0, at_most=1)
        check_range(self.sigma, "sigma", above=0)

    def start(self, model: Tensor, round: Round) -> ServerState:
        return {"model": model, "models": ClientRows(model)}

    def remember(self, model: Tensor) -> Tensors:
        return {"own": model}

    def send(self, server: ServerState, round: Round) -> Tensors:
        known: ClientRows = server["models"]
        mine = known.at(round.who)
        if not len(known):
            return {"model": mine}
        center = known.values.mean(-2, keepdim=True)  # distances of small numbers lose fewer digits
        a, b = mine - center, known.values - center
        squares = (a**2).sum(-1, keepdim=True) + (b**2).sum(-1, keepdim=True).mT - 2 * a @ b.mT
        others = torch.from_numpy(round.who[:, None] != known.owners).to(mine)  # (m, n)
        weights = self.share * others / others.sum(-1, keepdim=True).clamp(min=1) * torch.exp(-squares / self.sigma)
        return {"model": mine + weights @ b - weights.sum(-1, keepdim=True) * a}

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        return w - self.step_size * (gradient(w) + self.pull * (w - got["model"])), memory

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        return {"model": w}, {"own": w}

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        models = server["models"].updated(round.who, replies["model"])
        return {**super().combine(server, replies, round), "models": models}

    def own(self, got: Tensors, memory: Tensors) -> Tensor:
        return memory["own"]


@dataclass(frozen=True, kw_only=True)
class CFL(Algorithm):
    """FedAvg in groups of clients; a group is divided in two when it stalls (Sattler, Müller and Samek 2020).

    A group stalls if its mean update is short, ‖Σ pᵢΔᵢ‖ < ε₁, while that of a client is long, max ‖Δᵢ‖ > ε₂. The two
    parts are those between which the largest cosine of the clients' last updates is smallest. A client that has sent no
    update stays in the part of the group's first client.

    groups  the most groups
    eps1    ε₁ ≥ 0; 0 divides no group: then it is FedAvg
    eps2    ε₂ ≥ 0
    """

    search = {**Algorithm.search, "eps1": Between(0.05, 1.0), "eps2": Between(0.1, 3.0)}  # noqa: RUF012 - a constant
    neutral = {"eps1": 0.0}  # noqa: RUF012 - a constant
    groups: int = 8
    eps1: Hyper = 0.4
    eps2: Hyper = 1.6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.eps1, "eps1", at_least=0)
        check_range(self.eps2, "eps2", at_least=0)
        if self.groups < 1:
            raise BadInput(f"groups = {self.groups} is out of range: it must be at least 1")

    def start(self, model: Tensor, round: Round) -> ServerState:
        lanes = model.shape[:-2]
        return {
            "model": model,
            "centers": model.expand(*lanes, self.groups, -1).clone(),  # the models of the groups
            "used": torch.ones(*lanes, 1, 1, dtype=torch.int64),  # how many there are
            "group": ClientRows(torch.zeros(*lanes, 1, 1, dtype=torch.int64)),
            "updates": ClientRows(torch.zeros_like(model)),
        }

    def send(self, server: ServerState, round: Round) -> Tensors:
        return {"model": server["centers"].take_along_dim(server["group"].at(round.who), dim=-2)}

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        group, centers = server["group"].at(round.who), server["centers"]
        share = group == torch.arange(self.groups, device=group.device)  # (…, m, k)
        weights = share.mT * centers.new_tensor(round.weights)
        mass = weights.sum(-1, keepdim=True)
        updates = replies["model"] - centers.take_along_dim(group, dim=-2)
        moves = weights @ updates / mass.clamp(min=1e-30)
        longest = torch.linalg.vector_norm(updates, dim=-1, keepdim=True) * share
        stalls = torch.linalg.vector_norm(moves, dim=-1, keepdim=True) < self.eps1
        stalls = stalls & (longest.amax(-2, keepdim=True).mT > self.eps2) & (mass > 0)
        average = super().combine(server, replies, round)["model"]
        new: ServerState = {
            "model": average,
            # A group of all sampled clients has FedAvg's average, to the bit.
            "centers": torch.where(share.all(-2, keepdim=True).mT, average, centers + moves),
            "used": server["used"],
            "group": server["group"],
            "updates": server["updates"].updated(round.who, updates),
        }
        return self._divided(new, stalls) if bool(stalls.any()) else new

    def _divided(self, server: ServerState, stalls: Tensor) -> ServerState:
        """The server state with stalled groups (…, k, 1) divided in two, as long as there is room for more."""
        known: ClientRows = server["updates"]
        centers, used = server["centers"].clone(), server["used"].clone()
        labels = server["group"].at(known.owners).clone(memory_format=torch.contiguous_format)
        lanes = zip(
            *(centers.view(-1, *centers.shape[-2:]), used.view(-1, 1), labels.view(-1, len(known))),
            *(stalls.view(-1, self.groups), known.values.reshape(-1, *known.values.shape[-2:])),
            strict=True,
        )
        for models, count, label, stalled, updates in lanes:
            for group in torch.nonzero(stalled).flatten().tolist():
                members = torch.nonzero(label == group).flatten()
                if len(members) > 1 and int(count) < self.groups:
                    label[members[bipartition(updates[members])]] = int(count)
                    models[int(count)] = models[group]
                    count += 1  # in place: a view of `used`
        group = server["group"].updated(known.owners, labels)
        return {**server, "centers": centers, "used": used, "group": group}

    def own(self, got: Tensors, memory: Tensors) -> Tensor:
        return got["model"]


def bipartition(updates: Tensor) -> Integers:
    """Positions of the updates (n, P) that are not in the part of the first.

    Of all divisions in two, the largest cosine between the parts is smallest in this one: single linkage.
    """
    directions = torch.nn.functional.normalize(updates.double(), dim=-1)
    distances = (1 - directions @ directions.mT).clamp(min=0).cpu().numpy()
    tree = linkage(squareform(distances, checks=False), "single")
    parts = cut_tree(tree, n_clusters=[2]).reshape(-1)
    return np.flatnonzero(parts != parts[0])
