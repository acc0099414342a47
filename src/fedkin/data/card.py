"""A data card: what a trained model must know of its data, so that it predicts from raw features or tables."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.data.encoding import Encoding
from fedkin.data.features import pixels, sample_shape
from fedkin.data.federation import Federation
from fedkin.data.target import NUMBERED, Target
from fedkin.errors import BadInput
from fedkin.types import Record, Tensors


@dataclass(frozen=True)
class DataCard:
    """Shape, classes and preprocessing of a federation's samples, and the names of its clients; no samples.

    shape         of one sample: (channels, height, width) for images, (D,) for feature vectors
    classes       K, the number of classes
    shift, scale  the preprocessing: x = (raw − shift) / scale, each (D,) float32, or (C, D) if each client has its own
    whole         whether the raw features are integers other than pixels, such as tokens
    clients       names of the training clients, or of those that have a preprocessing of their own: their numbers
                  from 0 if they have no names
    personal      whether clients use models of their own
    target        what is predicted
    encoding      how rows of a table become features; None if the clients' data are arrays
    """

    shape: tuple[int, ...]
    classes: int
    shift: Tensor
    scale: Tensor
    whole: bool
    clients: tuple[str, ...]
    personal: bool = False
    target: Target = NUMBERED
    encoding: Encoding | None = None

    @classmethod
    def of(cls, federation: Federation, *, personal: bool) -> "DataCard":
        """The card of a federation whose training clients use models of their own, or the global one."""
        # Pooled samples belong to no client, but testing clients still have the preprocessing of their own.
        is_of_training = federation.paired or federation.own_scales is None
        clients = federation.train if is_of_training else federation.test
        names = clients.names or tuple(str(i) for i in range(len(clients)))
        shift, scale = federation.own_scales or (federation.shift, federation.scale)
        about = federation.shape, federation.classes, shift.cpu(), scale.cpu(), federation.whole, names
        personal = personal and is_of_training
        return cls(*about, personal, target=federation.target, encoding=federation.encoding)

    @property
    def features(self) -> int:
        """D, the number of features of a sample."""
        return self.shift.shape[-1]

    @property
    def is_by_client(self) -> bool:
        """Whether each client has a preprocessing of its own."""
        return self.shift.dim() == 2

    @property
    def outputs(self) -> int:
        """The number of outputs of a model."""
        return self.target.outputs(self.classes)

    @property
    def integers(self) -> Tensor | None:
        """Zeros in place of a federation's extreme samples, (2, D), if the features are unchanged integers."""
        changed = bool(self.shift.any()) or bool((self.scale != 1).any())
        return torch.zeros(2, self.features) if self.whole and not changed else None

    def number(self, client: str | int) -> int:
        """The number of a client, given by its name or its number."""
        if isinstance(client, str) and client in self.clients:
            return self.clients.index(client)
        if isinstance(client, int) and not isinstance(client, bool) and 0 <= client < len(self.clients):
            return client
        some = ", ".join(self.clients[:5]) + (", …" if len(self.clients) > 5 else "")
        raise BadInput(f"there is no client {client!r}: give one of the {len(self.clients)} clients, {some}")

    def preprocessing(self, client: str | int | None = None) -> tuple[Tensor, Tensor]:
        """Shift and scale, (D,) each, of a client's samples; without a client, those that all have in common."""
        number = None if client is None else self.number(client)
        if not self.is_by_client:
            return self.shift, self.scale
        if number is None:
            raise BadInput(
                "every client of this run has standardised its features by itself (data.preprocess = 'by client'): "
                "name the client whose samples they are, or train with data.preprocess = 'standardise' to serve others"
            )
        return self.shift[number], self.scale[number]

    def prepared(self, x: Any, client: str | int | None = None) -> Tensor:
        """Preprocessed rows (N, D) from raw samples.

        x       arrays as `from_arrays` takes them, or flat rows (N, D); if the clients' data are tables, a data frame,
                or arrays or lists by column name, or encoded rows (N, D)
        client  whose samples they are, for a preprocessing of its own
        """
        shift, scale = self.preprocessing(client)
        is_table = self.encoding is not None and not isinstance(x, np.ndarray | Tensor | list)
        raw = self.encoding.transform(x) if is_table and self.encoding is not None else self._raw(x)
        if not np.isfinite(raw).all():
            raise BadInput("the samples contain NaN or infinite values: clean them first")
        return (torch.from_numpy(raw) - shift) / scale

    def _raw(self, x: Any) -> NDArray[np.float32]:
        array = np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x)
        if array.dtype.kind not in "biuf":
            raise BadInput(f"the samples are of type {array.dtype}, not numbers: convert them first")
        flat = array.ndim == 2 and array.shape[1] == self.features
        if not flat and (array.ndim not in (2, 3, 4) or sample_shape(array) != self.shape):
            raise BadInput(
                f"the samples have shape {array.shape}, but the model was trained on samples of shape {self.shape}: "
                f"give N samples as at the training, or N rows of {self.features} features"
            )
        return np.array(pixels(array))  # a copy: it may share memory with x

    # -- files ---------------------------------------------------------------------------------------------------------

    def to_parts(self) -> tuple[Record, Tensors]:
        """The card as a JSON object and tensors, for a file."""
        numbered = self.clients == tuple(str(i) for i in range(len(self.clients)))
        about = {
            "shape": list(self.shape),
            "classes": self.classes,
            "whole": self.whole,
            "clients": len(self.clients) if numbered else list(self.clients),
            "personal": self.personal,
            "target": asdict(self.target),
            "encoding": None if self.encoding is None else self.encoding.to_dict(),
        }
        return about, {"shift": self.shift, "scale": self.scale}

    @classmethod
    def from_parts(cls, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> "DataCard":
        """The inverse of `to_parts`."""
        clients = about["clients"]
        names = map(str, range(clients)) if isinstance(clients, int) else clients
        shift, scale = tensors["shift"], tensors["scale"]
        shape, whole, personal = tuple(about["shape"]), bool(about["whole"]), bool(about["personal"])
        target = Target(**{**about["target"], "names": tuple(about["target"]["names"])})
        encoding = None if about["encoding"] is None else Encoding.from_dict(about["encoding"])
        return cls(shape, int(about["classes"]), shift, scale, whole, tuple(names), personal, target, encoding)
