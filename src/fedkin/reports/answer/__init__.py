"""The answer of an experiment: which method serves the clients best, by how much, and how sure that is.

scores.py      what is compared: its name, its format, and whether more is better
intervals.py   paired differences with their intervals
contenders.py  `Contender`: a method as it enters the comparison, read from its runs
ranking.py     `Ranking`: the contenders of one federation in order, with differences from the best
words.py       names of methods and intervals in sentences
sentences.py   the ranking in words
ties.py        methods that cannot be told apart from the best, and which of them costs least
cautions.py    what could change the answer
costs.py       what methods cost, and how evenly they serve the clients
"""
