"""The command `fedkin export`: models of a finished run as files, and how they are loaded."""

from collections.abc import Iterator
from pathlib import Path

from fedkin.errors import BadInput, nearest
from fedkin.experiments.export import LAYOUTS, export_model, file_names, loading_lines
from fedkin.experiments.loading import load_run
from fedkin.files import writable_folder


def export_run(
    folder: Path, client: str | None, layout: str, out: Path | None, *, every: bool = False
) -> Iterator[str]:
    """Export the global model of a run, that of a client, or those of all clients. Yields lines about the files."""
    if layout not in LAYOUTS:
        raise BadInput(f"there is no format '{layout}'{nearest(layout, LAYOUTS)}")
    if every and client is not None:
        raise BadInput("--client and --all contradict each other: give one of them")
    run = load_run(folder)
    trained, place = run.trained, (run.folder or folder) / "export"
    if (every or client is not None) and not trained.differs:
        raise BadInput(f"the clients of {folder} use the global model: leave out --client and --all")
    if every:
        target = writable_folder(out or place)
        names = trained.card.clients
        paths = [target / name for name in file_names(names, layout)]
        for name, path in zip(names, paths, strict=True):
            export_model(trained, path, layout, name, run.config)
        client = names[0]
        yield f"wrote {len(paths)} files to {target}, such as {paths[0].name}"
    else:
        (name,) = file_names((client or "model",), layout)
        paths = [export_model(trained, out or place / name, layout, client, run.config)]
        yield f"wrote {paths[0]}"
    yield "To load it, with x of shape (samples, " + ", ".join(map(str, trained.input_shape)) + "):"
    for line in loading_lines(trained, paths[0], layout, client):
        yield f"    {line}"
