"""The engine: simulates the rounds of a federation for any algorithm.

simulation.py  `Simulation`, `State`: a run and its state after a round
local_work.py  the loop over local steps
cohorts.py     `Cohort`: clients that are processed together, and the space of their steps
lanes.py       runs that differ in hyper-parameters, executed together
metrics.py     loss and accuracy of the global model
own.py         loss and accuracy of personal models
spaces/        the spaces in which local steps are computed
"""

from fedkin.engine.cohorts import Cohort
from fedkin.engine.metrics import Scores, measure, rounds_to, score
from fedkin.engine.own import own_models, own_scores
from fedkin.engine.simulation import Simulation, State

__all__ = [
    "Cohort",
    "Scores",
    "Simulation",
    "State",
    "measure",
    "own_models",
    "own_scores",
    "rounds_to",
    "score",
]
