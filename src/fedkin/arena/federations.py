"""The federation of a comparison, as users give it: an experiment, data in files, or clients in memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkin.data.client_files import write_clients
from fedkin.errors import BadInput
from fedkin.experiments.data_sections import Settings
from fedkin.experiments.grid import experiment_of, plans

Source = Path | str | Mapping[str, Any] | None


def federation_settings(source: Source, clients: Mapping[str, Any] | None, target: str | None, out: Path) -> Source:
    """What `settings_with` takes. Clients in memory are written to a folder in `out`.

    source   a TOML file, settings, data (a folder, a table, the name of a data set), or None
    clients  in memory, by name; then `source` has the other settings
    target   of data: the column to be predicted
    """
    if not isinstance(source, str | Path | Mapping | None):
        raise BadInput(
            f"a {type(source).__name__} cannot be compared on, as every seed divides the samples anew: give clients = "
            "a dictionary of data frames or pairs of arrays, a folder, a table, or settings"
        )
    about = {"target": target} if target is not None else {}
    if clients is None:
        if isinstance(source, Mapping):
            return _with_data(source, about)
        return experiment_of(source, about)
    if source is not None and not isinstance(source, Mapping):
        raise BadInput(f"clients are given and {source}, too: give one of them; other settings are a dictionary")
    if not isinstance(clients, Mapping) or len(clients) < 2:
        raise BadInput("clients is a dictionary from names to data, of two clients or more: give all of them")
    settings = {"name": "clients", **(source or {})}
    plans({"name": settings["name"]})  # is it usable as the name of a folder?
    folder = out / f"{settings['name']}-data"
    settings = _with_data(settings, {"source": str(folder), **about})
    write_clients(clients, folder)
    return settings


def _with_data(settings: Mapping[str, Any], about: Settings) -> Settings:
    if not about:
        return dict(settings)
    if not isinstance(section := settings.get("data", {}), Mapping):
        raise BadInput(f"data = {section!r} is not valid: give a dictionary, such as {{'source': 'digits'}}")
    return {**settings, "data": {**section, **about}}
