"""Functions of one client's parameters and samples, computed for a stack of clients.

A function takes w (P,), x (B, D) and more tensors (B,). A stack has w (…, P), with leading axes that x and the others
may lack, or have with length 1: then all clients share them.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def one_by_one(function: Callable[..., Tensor], w: Tensor, x: Tensor, *rest: Tensor) -> Tensor:
    """One call for each client."""
    lead = w.shape[:-1]
    if not lead:
        return function(w, x, *rest)
    whole = [w, *(t.expand(*lead, *t.shape[t.dim() - own :]) for t, own in _with_trailing(x, rest))]
    clients = zip(*(t.flatten(0, len(lead) - 1).unbind() for t in whole), strict=True)
    each = [function(*client) for client in clients]
    return (torch.stack(each) if len(each) > 1 else each[0]).view(*lead, *each[0].shape)


def at_once(function: Callable[..., Tensor], w: Tensor, x: Tensor, *rest: Tensor) -> Tensor:
    """One call for all clients, by `torch.func.vmap` for every leading axis of w."""
    lead = w.dim() - 1
    for axis in reversed(range(lead)):
        dims = [_mapped(t, axis, lead, trailing) for t, trailing in _with_trailing(x, rest)]
        function = torch.func.vmap(function, in_dims=(0, *dims), randomness="different")
    squeezed = [_squeezed(t, trailing) for t, trailing in _with_trailing(x, rest)]
    return function(w, *squeezed)


def _with_trailing(x: Tensor, rest: tuple[Tensor, ...]) -> list[tuple[Tensor, int]]:
    """Each tensor with the number of its own axes, which are the last."""
    return [(x, 2), *((r, 1) for r in rest)]


def _mapped(t: Tensor, axis: int, leading: int, trailing: int) -> int | None:
    own = axis - (leading - (t.dim() - trailing))
    return 0 if own >= 0 and t.shape[own] > 1 else None


def _squeezed(t: Tensor, trailing: int) -> Tensor:
    return t.reshape(*(n for n in t.shape[: t.dim() - trailing] if n > 1), *t.shape[t.dim() - trailing :])
