"""The paper: its tables and figures reproduced by name, and its theorems checked on measured runs.

reproduce.py        reproductions, described by the TOML files in reproductions/
divisions.py        divisions of published code, in which clients share samples
motley.py           an algorithm as a benchmark computes it
tables.py           their tables: results next to the paper's values
earlier.py          cells of an earlier table, which stay on a page
milestones.py       a measure after some rounds, next to published values
client_losses.py    a table of the loss at every client
momentum.py         a table of β by local optimizer
small_cnn.py        a small convolutional network
controls.py         tables of the control experiments, over seeds
personal.py         tables of personal models, methods tuned alike
privacy_table.py    accuracy for several ε
figures.py          their figures: curves, sweeps, federations before training
theory.py           the formulas of theorems and lemmas, as functions
problem.py          a federation with its constants L, μ, Γ and its minimum
quadratic.py        quadratics, whose constants are exact
softmax_problem.py  softmax regression, whose constants are estimated
trajectories.py     runs with every quantity that the theorems bound
bounds.py           the bounds, evaluated for a trajectory
theory_report.py    the command `fedkin theory`
theory_tables.py    its tables
theory_figures.py   its figures
"""
