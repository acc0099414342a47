"""Type aliases used across the package."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Tensors = dict[str, Tensor]
Record = dict[str, Any]  # a JSON object: measurements of a round, a summary, a configuration
