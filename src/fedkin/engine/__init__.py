"""The engine: simulates the rounds of a federation for any algorithm.

simulation.py  `Simulation`, `State`: a run and its state after a round
privacy.py     `Privacy`: uploads that are clipped and get noise
accounting.py  what noise is worth: ε of a run
aggregation.py for which algorithms rules of aggregation hold
local_work.py  the loop over local steps
traces.py      traces of local steps that are kept from round to round
cohorts.py     `Cohort`: clients that are processed together, and the space of their steps
optimizers.py  momentum, Adam and weight decay at the clients
traffic.py     bytes that are exchanged
lanes.py       runs that differ in hyper-parameters, executed together
metrics.py     loss and main measure of the global model
own.py         the same of personal models
scores.py      AUC, confusion matrix, R² and others, after the last round
spaces/        the spaces in which local steps are computed
"""

from fedkin.engine.cohorts import Cohort
from fedkin.engine.metrics import Scores, measure, score
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
    "score",
]
