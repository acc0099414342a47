"""Spaces: representations of parameters in which local steps are computed. `step` runs unchanged in all of them.

plain.py           `Space`, `Plain`: parameters as tensors, for every model and algorithm
fused.py           `Fused`: tensors with fewer passes over memory, for steps that are linear combinations
samples.py         `Samples`: coefficients on a client's samples, for models that begin with a linear layer
compiled.py        `Compiled`: the same for softmax regression, compiled; needs Numba and is imported on demand
primal.py          `Primal`: parameters as arrays, compiled; needs Numba and is imported on demand
combination.py     `Combination`: linear combinations of named vectors
script.py          `Script`: local steps as a list of instructions
recipe.py          `Recipe`: the same as arrays of coefficients, for compiled rounds
prepared.py        samples, Gram matrices and batches of a cohort
norms.py           norms of gradients in sample space, for clipping
scoring.py         compiled scores of linear models, for measurements
kernels.py         a compiled round of softmax regression in sample space
inner_loops.py     its innermost loops
primal_kernels.py  a compiled round on parameters
primal_loops.py    its innermost loops
program.py         `Program`: steps with several gradients as matrices
program_kernels.py the same compiled, on parameters
batchwise.py       `Batchwise`: steps whose gradients are all of one batch, in products of its samples
batchwise_kernels.py the same compiled
"""

from fedkin.engine.spaces.combination import Combination
from fedkin.engine.spaces.fused import Fused
from fedkin.engine.spaces.plain import Plain, Space
from fedkin.engine.spaces.samples import Samples
from fedkin.engine.spaces.script import Script

__all__ = ["Combination", "Fused", "Plain", "Samples", "Script", "Space"]
