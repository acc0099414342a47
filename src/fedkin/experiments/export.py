"""Files in which trained models leave for other programs: safetensors, PyTorch's own, ONNX."""

import io
import json
import logging
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedkin.data.target import Target
from fedkin.errors import BadInput, in_short, is_out_of_memory, nearest
from fedkin.experiments.trained import Trained
from fedkin.files import as_json, writable_file, write_atomically
from fedkin.models import Mixture
from fedkin.types import Record, Tensors

PREPROCESSING_NAMES = {"shift": "preprocessing.shift", "scale": "preprocessing.scale"}


class PreparedModule(nn.Module):
    """A module for raw features: it shifts and scales them first."""

    def __init__(self, net: nn.Module, shift: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (N, K) of raw samples."""
        scores: Tensor = self.net((x - self.shift) / self.scale)  # type: ignore[operator]
        return scores


def export_model(
    trained: Trained, path: Path, layout: str, client: str | int | None, config: Mapping[str, Any]
) -> Path:
    """Write a model of a run to a file.

    layout  `safetensors`, `pt` or `onnx`
    client  name or number of a client that has a model or a preprocessing of its own (None: the global model)
    config  settings of the run, for the metadata
    """
    if layout not in LAYOUTS:
        raise BadInput(f"there is no format '{layout}'{nearest(layout, LAYOUTS)}")
    writable_file(path, "--out")
    name = None if client is None else trained.card.clients[trained.card.number(client)]
    parts = preprocessing_of(trained, client)
    module = trained.module(client).eval()
    write_atomically(path, LAYOUTS[layout](trained, module, parts, about_model(trained, name, config)))
    return path


def about_model(trained: Trained, client: str | None, config: Mapping[str, Any]) -> Record:
    """What a file says of its model: how it is built, what it takes, and the settings of the run."""
    tokens = _takes_tokens(trained)
    return {
        "module": trained.module_code(client),
        "client": client,
        "input": {"shape": list(trained.input_shape), "type": "int64" if tokens else "float32"},
        "preprocessing": "none" if tokens else "(x - shift) / scale; pixels of type uint8 are divided by 255 first",
        "output": output_words(trained),
        "target": asdict(trained.card.target),
        "encoding": None if trained.card.encoding is None else trained.card.encoding.to_dict(),
        "settings": dict(config),
    }


def output_words(trained: Trained) -> str:
    """What the outputs of the module mean."""
    target = trained.card.target
    if target.is_number:
        return f"a number y: the value is {target.scale!r} * y + {target.shift!r}"
    if target.kind == "binary":
        return f"the log-odds of {target.text(1)} against {target.text(0)}"
    return "a score for each class; softmax gives probabilities"


def preprocessing_of(trained: Trained, client: str | int | None) -> Tensors:
    """Shift and scale in the shape of a sample; none for tokens, which stay as they are."""
    if _takes_tokens(trained):
        return {}
    names = ("shift", "scale")
    values = trained.card.preprocessing(client)
    return {name: value.reshape(trained.input_shape) for name, value in zip(names, values, strict=True)}


def _takes_tokens(trained: Trained) -> bool:
    return trained.input_dtype == torch.int64


def _as_safetensors(trained: Trained, module: nn.Module, parts: Tensors, about: Record) -> bytes:
    tensors = {name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}
    for name, value in parts.items():
        if PREPROCESSING_NAMES[name] in tensors:
            raise BadInput(
                f"the module has a tensor '{PREPROCESSING_NAMES[name]}', which is the name of the preprocessing: "
                "use the format pt"
            )
        tensors[PREPROCESSING_NAMES[name]] = value.clone()
    return bytes(save(tensors, {"format": "pt", "fedkin": as_json(about)}))


def _as_pt(trained: Trained, module: nn.Module, parts: Tensors, about: Record) -> bytes:
    file = io.BytesIO()
    plain = json.loads(as_json(about))  # types that `torch.load` reads without running any code
    owned = {name: value.clone() for name, value in parts.items()}  # a view would be saved with all clients' numbers
    torch.save({"state_dict": module.state_dict(), **owned, "about": plain}, file)
    return file.getvalue()


def _as_onnx(trained: Trained, module: nn.Module, parts: Tensors, about: Record) -> bytes:
    try:
        import onnx  # noqa: F401 - an extra
        import onnxscript  # noqa: F401
    except ImportError:
        raise BadInput("ONNX needs two more packages: pip install 'fedkin[onnx]'") from None
    if parts:
        module = PreparedModule(module, parts["shift"], parts["scale"]).eval()
    example = torch.zeros(2, *trained.input_shape, dtype=trained.input_dtype)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the exporter reports which optional packages it does not find
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch about its own exporter
            program: Any = torch.onnx.export(
                module,
                (example,),
                dynamo=True,
                verbose=False,
                input_names=["x"],
                output_names=["scores"],
                dynamic_shapes=({0: torch.export.Dim("samples")},),
            )
    except Exception as error:  # whatever the exporter raises
        if is_out_of_memory(error):
            raise
        raise BadInput(
            f"the module cannot be written as ONNX ({in_short(error)}): use the format safetensors or pt"
        ) from error
    finally:
        logging.disable(before)
    model = program.model_proto
    entry = model.metadata_props.add()
    entry.key, entry.value = "fedkin", as_json(about)
    return bytes(model.SerializeToString())


LAYOUTS: dict[str, Callable[[Trained, nn.Module, Tensors, Record], bytes]] = {
    "safetensors": _as_safetensors,
    "pt": _as_pt,
    "onnx": _as_onnx,
}


def loading_lines(trained: Trained, path: Path, layout: str, client: str | int | None = None) -> list[str]:
    """Lines of Python that load an exported file and compute the scores of raw samples x, without fedkin."""
    prepared = "x" if _takes_tokens(trained) else "(x - shift) / scale"
    if layout == "onnx":
        return [f'session = onnxruntime.InferenceSession("{path}")', 'scores = session.run(None, {"x": x})[0]']
    if layout == "pt":
        lines = [f'saved = torch.load("{path}")']
        weights = 'saved["state_dict"]'
        prepared = prepared.replace("shift", 'saved["shift"]').replace("scale", 'saved["scale"]')
    else:
        lines, weights = [f'tensors = safetensors.torch.load_file("{path}")'], "tensors"
        if not _takes_tokens(trained):
            names = (f'tensors.pop("{name}")' for name in PREPROCESSING_NAMES.values())
            lines.append(f"shift, scale = {', '.join(names)}")
    build = f"net = {trained.module_code(client)}"
    scores = f"scores = net.eval()({prepared})"
    if isinstance(trained.function(client), Mixture):
        lines.append(f'shares = {weights}.pop("shares")')
        scores = _mixing_line(trained.card.target, prepared)
    return [*lines, build, f"net.load_state_dict({weights})", scores]


def _mixing_line(target: Target, prepared: str) -> str:
    """The scores of a mixture: of mixed probabilities, or mixed numbers."""
    mean, back = ("", "") if target.is_number else (".softmax(-1)", ".log()")
    if target.kind == "binary":
        mean, back = ".sigmoid()", ".logit()"
    return f"scores = sum(share * part({prepared}){mean} for share, part in zip(shares, net.eval())){back}"


def file_names(names: tuple[str, ...], layout: str) -> list[str]:
    """A file name for each client, no two alike.

    >>> file_names(("North 1", "North/1", "b"), "pt")
    ['North_1.pt', 'North_1-2.pt', 'b.pt']
    """
    taken: set[str] = set()  # in lower case, as some file systems do not distinguish
    found = []
    for name in names:
        stem = re.sub(r"[^\w.+-]", "_", name)[:100].lstrip(".") or "_"
        unique, n = stem, 2
        while unique.lower() in taken:
            unique, n = f"{stem}-{n}", n + 1
        taken.add(unique.lower())
        found.append(f"{unique}.{layout}")
    return found
