"""Benchmarks: the engine compared with hand-written loops and with the machine's limit.

command.py         the command `fedkin bench`
workloads.py       what is computed: federations with synthetic data, and models
loops.py           the competitors: the engine, and FedAvg written by hand in PyTorch
timing.py          competitors timed in turns
runs.py            rounds as `fedkin run` executes them
memory.py          algorithms whose clients keep something between rounds, with their loops
settings.py        the settings of the matrix
matrix.py          the engine against the slicing loop in every combination of settings
matrix_table.py    the tables of the matrix, and its notes
matrix_figure.py   the matrix as a heat map
busy.py            rounds beside processes that keep the cores busy
busy_processes.py  these processes, which end with the one that started them
speed.py           seconds per round of all competitors, and of the engine with one and more threads
evaluation.py      seconds to measure a model on many samples
growth.py          time and memory for growing numbers of clients
growth_process.py  the measurement of one number of clients, in a process of its own
kin_growth.py      kin among many clients: time to find them, and of rounds that start at them
kin_process.py     the measurement of one number of clients in kinds, in a process of its own
results.py         the result of a measurement, and its page
meter.py           progress and remaining time
"""
