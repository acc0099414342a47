"""The answer of an experiment: which method serves the clients best, by how much, and how sure that is.

scores.py      what is compared: its name, its format, and whether more is better
intervals.py   paired differences with their intervals
contenders.py  `Contender`: a method as it enters the comparison, read from its runs
ranking.py     `Ranking`: the contenders of one federation in order, with differences from the best
sentences.py   the ranking in words
cautions.py    what could change the answer
costs.py       what methods cost, and how evenly they serve the clients
"""
