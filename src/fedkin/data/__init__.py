"""Data: sources of samples, their partition among clients, and the federation that results.

sources.py     data sets by name or from an npz file
hub.py         data sets downloaded from the Hugging Face hub
dataset.py     a data set in memory: samples with labels, checked
features.py    features as flat rows, and their preprocessing
streams.py     a random number stream for every purpose
draws.py       random client sizes and class mixes
apportion.py   shares as whole numbers of samples
partition.py   the partition schemes, and federations from data sets or existing clients
federation.py  the clients' samples as the engine uses them
digest.py      a digest of a data set, by which a run knows its data again
kinds.py       clients in kinds: rotated images, permuted labels
"""

from fedkin.data.dataset import Dataset, from_arrays
from fedkin.data.features import PREPROCESSING, pixels, preprocessing, sample_shape
from fedkin.data.federation import Clients, Federation, from_rows
from fedkin.data.kinds import DIFFERENCES, in_kinds, kind_of_each
from fedkin.data.partition import SCHEMES, by_group, federate, from_clients, split, split_like
from fedkin.data.sources import SOURCES, load
from fedkin.data.streams import stream

__all__ = [
    "DIFFERENCES",
    "PREPROCESSING",
    "SCHEMES",
    "SOURCES",
    "Clients",
    "Dataset",
    "Federation",
    "by_group",
    "federate",
    "from_arrays",
    "from_clients",
    "from_rows",
    "in_kinds",
    "kind_of_each",
    "load",
    "pixels",
    "preprocessing",
    "sample_shape",
    "split",
    "split_like",
    "stream",
]
