"""Names for the kinds of values that pass between the rooms."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Tensors = dict[str, Tensor]
Record = dict[str, Any]  # what JSON can hold: a round's measurements, a summary, a configuration
