"""Reports: runs as tables and figures. Nothing here trains.

run.py         one run, as its folder describes it
runs.py        runs read from their folders
labels.py      settings and values in words
groups.py      which runs belong together, in which order, and in which settings they differ
measures.py    columns of results, over seeds
selection.py   runs chosen on validation samples
report.py      the table of runs, and the files of `fedkin report`
curves.py      curves over the rounds
chosen.py      the figure of the runs chosen on validation
plotting.py    curves of results held in memory
tables.py      tables for terminal, Markdown and spreadsheet
figures.py     the style of figures, how they are saved, and the figure of a federation
histograms.py  bins of histograms, and histograms as text
data_view.py   data before training: clients, target, columns
overview.py    a federation before training, for `fedkin graph`
kin_runs.py    runs with kin: who is kin, what was chosen, what each client gains
kin_layout.py  where the clients of a graph are drawn
kin_figure.py  the graph of kin and the gains as a picture
kin_text.py    the same as text, for `fedkin kin`
privacy.py     what runs have spent of their clients' privacy
pages.py       pages with sections that a command can replace
"""
