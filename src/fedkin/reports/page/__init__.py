"""One self-contained page of an experiment: the answer, the numbers behind it, and charts; `fedkin report`, `watch`.

document.py    the whole page
sections.py    the part of one federation: conclusion, table, charts
glossary.py    what the words mean
columns.py     data of charts as columns, thinned to what a page can hold
chart_data.py  the columns of each chart, from runs
charts.py      the charts, as Vega-Lite specifications (with Altair)
kin_chart.py   who is kin, as a chart
server.py      the page of a folder while its runs go on, on this machine only
page.css, page.js  style, and what runs in the browser
"""
