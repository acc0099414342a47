"""Which entries of the vectors that travel are the trained parameters of a node's module.

A server app starts from `ArrayRecord(net.state_dict())`, as every Flower app does. That has more entries than there are
parameters to train if the module has constant buffers, frozen parameters, or tied parameters, which appear under each
of their names. Nodes take the trained parameters out of what they receive, and put them back into what they send.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedkin.errors import BadInput
from fedkin.types import Tensors


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the P trained parameters are among the S entries of a vector.

    places  for each entry the number of its parameter, or −1 for a constant, (S,); None if S = P, in order
    first   for each parameter the number of its first entry, (P,)
    """

    places: Tensor | None = None
    first: Tensor | None = None

    @classmethod
    def of(cls, net: nn.Module, size: int) -> "Layout":
        """The layout in which vectors of this size hold the entries of a module."""
        entries = _fitting(net, size)
        trained = [p for p in net.parameters() if p.requires_grad]
        if [id(entry) for entry in entries] == [id(p) for p in trained]:
            return cls()
        offsets, count = {}, 0
        for p in trained:
            offsets[id(p)] = torch.arange(count, count + p.numel())
            count += p.numel()
        places = torch.cat([offsets.get(id(entry), torch.full((entry.numel(),), -1)) for entry in entries])
        # Written from the last entry to the first, so that of several entries of a parameter the first stays.
        first, where = torch.zeros(count, dtype=torch.int64), (places >= 0).nonzero()[:, 0].flip(0)
        first[places[where]] = where
        return cls(places, first)

    def taken(self, vectors: Tensors) -> Tensors:
        """Vectors (…, S) as those of the trained parameters, (…, P); others stay."""
        if self.places is None or self.first is None:
            return vectors
        size, first = len(self.places), self.first
        return {name: v[..., first] if v.shape[-1] == size else v for name, v in vectors.items()}

    def placed(self, vectors: Tensors, model: Tensor) -> Tensors:
        """The inverse: vectors (…, P) as (…, S), with the constants of the received model (…, S) in `model`."""
        if self.places is None or self.first is None:
            return vectors
        is_trained, placed = self.places >= 0, dict(vectors)
        for name, v in vectors.items():
            if v.shape[-1] == len(self.first):
                constants = model if name == "model" else torch.zeros_like(model)
                placed[name] = constants.clone()
                placed[name][..., is_trained] = v[..., self.places[is_trained]]
        return placed


def load_entries(net: nn.Module, vector: Tensor) -> None:
    """Load a vector (S,) into a module: parameters, and constants if the vector has them."""
    first = 0
    with torch.no_grad():
        for entry in _fitting(net, len(vector)):
            entry.copy_(vector[first : first + entry.numel()].view_as(entry))
            first += entry.numel()


def _fitting(net: nn.Module, size: int) -> list[Tensor]:
    """The entries of a module that make up a vector of this size: its trained parameters, all, or its state."""
    parameters: list[Tensor] = list(net.parameters())
    state: list[Tensor] = [entry for entry in net.state_dict(keep_vars=True).values() if entry.dtype == torch.float32]
    for entries in ([p for p in parameters if p.requires_grad], parameters, state):
        if sum(entry.numel() for entry in entries) == size:
            return entries
    own = sum(p.numel() for p in parameters if p.requires_grad)
    raise BadInput(f"the server sent {size} parameters where this node's model has {own}: use one model")
