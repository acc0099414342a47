"""The arena: which method is best on a federation, found with the same budget for all.

budget.py      what every method gets: trials, and fresh seeds
federations.py the federation as users give it: an experiment, files, or clients in memory
entrants.py    the methods that are compared, what of them is fixed and what is searched
question.py    what is compared: one federation, the methods, the settings that all runs share
trials.py      trials of all methods on validation samples, of which half stop early
found.py       what was found: each method after its trials, and the answer
comparison.py  `compare`: trials, then the best of each method on fresh seeds
spaces.py      the search spaces as a table
phases.py      progress of a comparison, with an estimate
"""

from fedkin.arena.budget import BUDGETS, Budget, budget_of
from fedkin.arena.comparison import compare
from fedkin.arena.found import Comparison

__all__ = ["BUDGETS", "Budget", "Comparison", "budget_of", "compare"]
