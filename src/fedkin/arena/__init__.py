"""The arena: which method is best on a federation, found with the same budget for all.

federations.py the federation as users give it: an experiment, files, or clients in memory
entrants.py    the methods that are compared, what of them is fixed and what is searched
trials.py      trials of all methods on validation samples, of which half stop early
comparison.py  `compare`: trials, then the best of each method on fresh seeds
spaces.py      the search spaces as a table
phases.py      progress of a comparison, with an estimate
"""

from fedkin.arena.comparison import BUDGETS, Budget, Comparison, budget_of, compare

__all__ = ["BUDGETS", "Budget", "Comparison", "budget_of", "compare"]
