"""Trained models: the global one and those of the clients, as they predict, and as they leave for other programs."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkin.data.card import DataCard
from fedkin.engine.metrics import rows_at_once
from fedkin.errors import BadInput
from fedkin.experiments.config import ModelSection
from fedkin.experiments.model_files import own_size, read_card, read_own
from fedkin.experiments.preparation import model_of
from fedkin.files import json_object
from fedkin.models import Mixture, Model, plain_module
from fedkin.models.plain import input_shape, module_code
from fedkin.types import Record, Tensors

OUTPUTS = ("values", "probabilities", "scores")


@dataclass(frozen=True)
class Trained:
    """The models of a run.

    model   the function of its parameters
    card    what the models must know of the data
    w       parameters of the global model, (P,)
    own     gives the parameters of a client's own model by its number; None if clients use the global model
    used    the function of those parameters if it is not `model`, as with a mixture
    code    Python that builds the module of plain PyTorch, for a model by import path
    """

    model: Model
    card: DataCard
    w: Tensor
    own: Callable[[int], Tensor] | None = None
    used: Model | None = None
    code: str = "MyNet()"

    @property
    def is_personal(self) -> bool:
        """Whether clients have models of their own."""
        return self.own is not None

    @property
    def differs(self) -> bool:
        """Whether clients predict differently: by models of their own, or by a preprocessing of their own."""
        return self.is_personal or self.card.is_by_client

    def parameters(self, client: str | int | None = None) -> Tensor:
        """Parameters of a client's own model, or for None of the global one, (P,)."""
        if client is not None:
            number = self.card.number(client)
            return self.w if self.own is None else self.own(number)
        if self.own is not None:
            warnings.warn(
                "clients of this run use models of their own and this is the average of all: name a client to get "
                "its model",
                stacklevel=3,
            )
        return self.w

    def function(self, client: str | int | None = None) -> Model:
        """The function of these parameters."""
        return self.model if client is None or self.used is None else self.used

    def module(self, client: str | int | None = None) -> nn.Module:
        """The model as a module of plain PyTorch, for preprocessed samples."""
        return plain_module(self.function(client), self.parameters(client))

    def state_dict(self, client: str | int | None = None) -> Tensors:
        """The named tensors of the module of plain PyTorch."""
        return {name: value.detach().clone() for name, value in self.module(client).state_dict().items()}

    def predict(self, x: Any, client: str | int | None = None, output: str = "values") -> NDArray[Any]:
        """Predictions for raw samples, (N,) or (N, K)."""
        if output not in OUTPUTS:
            raise BadInput(f"unknown output '{output}': choose {', '.join(OUTPUTS)}")
        target = self.card.target
        if output == "probabilities" and target.is_number:
            raise BadInput("a number is predicted, which has no probabilities: use output='values' or 'scores'")
        rows, w, model = self.card.prepared(x, client), self.parameters(client).cpu(), self.function(client)
        with torch.no_grad():
            parts = torch.split(rows, rows_at_once(model, self.card.features))
            z = torch.cat([model.scores(w, part) for part in parts], dim=-1)
            if output == "scores":
                return z.mT.numpy()
            if output == "probabilities":
                p = self.model.loss.mean(z)
                return (torch.cat([1 - p, p]) if target.kind == "binary" else p).mT.numpy()
            found = self.model.loss.predicted(z).numpy()
        if target.is_number:
            return np.asarray(found.astype(np.float64) * target.scale + target.shift)
        return np.array(target.names)[found] if target.names else np.asarray(found)

    # -- for other programs --------------------------------------------------------------------------------------------

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of a sample as the module of plain PyTorch takes it."""
        return input_shape(self.model, self.card.features)

    @property
    def input_dtype(self) -> torch.dtype:
        """The type of a sample as the module of plain PyTorch takes it."""
        return getattr(self.model, "dtype", torch.float32)

    def module_code(self, client: str | int | None = None) -> str:
        """A line of Python that builds the module of plain PyTorch."""
        return module_code(self.function(client), self.code)


def trained_in(folder: Path, config: Record, beside: Path | None = None) -> Trained:
    """The models in the folder of a run with these settings.

    beside  a folder in which the module of the model is looked for first (default: that of the TOML file, if known)
    """
    w, card = read_card(folder)
    if config.get("data", {}).get("preprocess") == "by client" and not card.is_by_client:
        raise BadInput(
            f"the clients of {folder} have standardised their features by themselves, and an earlier version has not "
            "kept their means: run again with --fresh"
        )
    section = ModelSection.model_validate(config.get("model", {}))
    if beside is None and (noted := (json_object(folder / "origin.json") or {}).get("beside")):
        beside = Path(str(noted)) if Path(str(noted)).is_dir() else None
    model = model_of(card, section, beside)
    if model.size != len(w):
        raise BadInput(
            f"{folder} holds {len(w)} parameters but its model has {model.size}: use the model as it was trained"
        )
    arguments = ", ".join(f"{name}={value!r}" for name, value in section.args.items())
    code = f"{section.kind.rpartition(':')[2]}({arguments})"
    own = (lambda client: read_own(folder, client)) if card.personal else None
    size = own_size(folder) if card.personal else None
    # A client that uses one model has as many parameters as the global one.
    used = None if size in (None, model.size) else Mixture(model, size // (model.size + 1))
    return Trained(model, card, w, own, used, code)
