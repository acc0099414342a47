"""Loading of compiled code where it can be loaded: everything is computed without it, too."""

import warnings
from collections.abc import Callable
from typing import TypeVar

Loaded = TypeVar("Loaded")


def if_compiled(load: Callable[[], Loaded]) -> Loaded | None:
    """What a function that imports compiled code returns; None if Numba is not installed or does not work."""
    try:
        return load()
    except ImportError:
        return None
    except Exception as error:  # whatever the compiler raises
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(
            f"Numba cannot compile the local steps ({reason}), so they take longer: reinstall it", stacklevel=3
        )
        return None
