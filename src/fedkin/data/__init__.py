"""Data: sources of samples, their partition among clients, and the federation that results.

sources.py     data sets by name or from an npz file
hub.py         data sets downloaded from the Hugging Face hub
target.py      what is predicted: classes, one of two classes, or a number
measure.py     the main measure of models: accuracy, or mean squared error
dataset.py     a data set in memory: samples with labels, checked
features.py    features as flat rows, and their preprocessing
streams.py     a random number stream for every purpose
columns.py     a column of a table: numbers, booleans, dates or text, with missing values
tables.py      tables from CSV and Parquet files and data frames
agreement.py   clients agree on their columns, by name and type
summaries.py   what leaves a client: a summary of each column
encoding.py    columns as features, as agreed from the summaries
remarks.py     what is worth a look in tables: identifiers, units
division.py    training, validation and testing samples within clients
own_clients.py clients with samples of their own, and their federation
client_sources.py  such clients from files, data frames and arrays
client_files.py    clients in memory as files
assembly.py    samples ordered by client, and preprocessed
draws.py       random client sizes and class mixes
apportion.py   shares as whole numbers of samples
partition.py   the partition schemes, and federations from data sets
federation.py  the clients' samples as the engine uses them
card.py        what a trained model must know of its data
digest.py      a digest of a data set, by which a run knows its data again
kinds.py       clients in kinds: rotated images, permuted labels
"""

from fedkin.data.card import DataCard
from fedkin.data.client_sources import from_clients, from_folder, from_table
from fedkin.data.dataset import Dataset, from_arrays
from fedkin.data.encoding import Encoding
from fedkin.data.features import PREPROCESSING, pixels, preprocessing, sample_shape
from fedkin.data.federation import Clients, Federation, from_rows
from fedkin.data.kinds import DIFFERENCES, in_kinds, kind_of_each
from fedkin.data.partition import SCHEMES, by_group, federate, split, split_like
from fedkin.data.sources import SOURCES, load
from fedkin.data.streams import stream
from fedkin.data.target import SCALINGS, TASKS, Target, target_of

__all__ = [
    "DIFFERENCES",
    "PREPROCESSING",
    "SCALINGS",
    "SCHEMES",
    "SOURCES",
    "TASKS",
    "Clients",
    "DataCard",
    "Dataset",
    "Encoding",
    "Federation",
    "Target",
    "by_group",
    "federate",
    "from_arrays",
    "from_clients",
    "from_folder",
    "from_rows",
    "from_table",
    "in_kinds",
    "kind_of_each",
    "load",
    "pixels",
    "preprocessing",
    "sample_shape",
    "split",
    "split_like",
    "stream",
    "target_of",
]
