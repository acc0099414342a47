"""Objects of the user's own modules, by their import path."""

import importlib
from operator import attrgetter
from typing import Any

from fedkin.errors import BadInput, in_short


def imported_object(path: str, what: str) -> Any:
    """What `package.module:name` names, such as the class of a model. A module that cannot be imported is bad input."""
    where, _, name = path.partition(":")
    try:
        return attrgetter(name)(importlib.import_module(where))
    except (Exception, SystemExit) as error:  # whatever the module raises
        raise BadInput(
            f"the {what} '{path}' cannot be imported ({in_short(error)}): check the path and PYTHONPATH"
        ) from error
