"""Data, graph, model and algorithm of a run, from its configuration."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedkin.algorithms import algorithm_named
from fedkin.data import sources
from fedkin.data.client_sources import read_clients
from fedkin.data.digest import count_of_numbers, data_digest
from fedkin.data.federation import Federation
from fedkin.data.own_clients import OwnClients
from fedkin.data.partition import federate
from fedkin.data.sources import Dataset
from fedkin.engine.privacy import check_messages
from fedkin.engine.simulation import Simulation
from fedkin.errors import BadInput
from fedkin.experiments.config import Experiment, ModelSection
from fedkin.experiments.progress import Listener, Silent
from fedkin.experiments.readings import read_as
from fedkin.graph.similarity import SimilarityGraph, build_graph
from fedkin.models import Data, Model, build_model


class Preparation:
    """Builds simulations from configurations. Consecutive runs of a grid share data, federation and graph."""

    def __init__(self, data: Path | None = None, listener: Listener | None = None) -> None:
        self.data = data
        self.listener = listener or Silent()
        # Only the last of each is cached: CIFAR-10 takes 700 MB, and runs with the same federation are consecutive.
        self._dataset: tuple[Any, Dataset | OwnClients] | None = None
        self._federation: tuple[Any, Federation] | None = None
        self._graph: tuple[Any, SimilarityGraph] | None = None
        self._digests: dict[Any, str] = {}

    def simulation(self, config: Experiment) -> Simulation:
        """The simulation of a run."""
        federation, graph = self.federation(config), self.graph(config)
        simulation = Simulation(
            federation,
            model_of(federation, config.model),
            config.algorithm.build(config.local.step_size),
            graph,
            graph.weights(config.graph.weights, federation.train.sizes),
            config.local.work(),
            None if config.take_part == "all" or config.partition.pooled else config.take_part,
            config.seed,
            aggregate=config.aggregation.build(),
        )
        if (privacy := config.privacy.build()) is not None and not config.partition.pooled:
            check_messages(privacy, config.graph.kind)
            # First as it is: what is refused needs no noise.
            simulation = replace(simulation, privacy=privacy)
            simulation = replace(simulation, privacy=privacy.found(config.rounds, simulation.rate))
        return read_as(simulation, config.reading)

    def data_digest(self, config: Experiment) -> str:
        """A digest of the loaded data set."""
        key = _origin_key(config)
        if key not in self._digests:
            self._digests[key] = data_digest(self.dataset(config))
        return self._digests[key]

    def numbers(self, config: Experiment) -> int:
        """How many numbers the loaded data set has."""
        return count_of_numbers(self.dataset(config))

    def dataset(self, config: Experiment) -> Dataset | OwnClients:
        """The data as they are loaded: a data set to be divided, or clients with samples of their own."""
        key, section = _origin_key(config), config.data
        if self._dataset is None or self._dataset[0] != key:
            self._dataset = None
            self.listener.doing(f"loading {section.source}")
            if section.has_clients:
                self._dataset = (key, read_clients(section.source, section.table_options()))
            else:
                how: dict[str, Any] = {"within" if k == "group" else k: v for k, v in _loading(config).items()}
                self._dataset = (key, sources.load(section.source, self.data, **how))
        return self._dataset[1]

    def federation(self, config: Experiment) -> Federation:
        """The clients' data, on the device."""
        key = (config.data, config.partition, validation_share(config), config.seed, config.device)
        if self._federation is None or self._federation[0] != key:
            self._federation = None  # release the old one before the new one is built
            self._federation = (key, self._make_federation(config))
        return self._federation[1]

    def _make_federation(self, config: Experiment) -> Federation:
        dataset, split = self.dataset(config), config.partition
        self._dataset = None  # the federation has its own copy
        federation = federate(
            dataset,
            **split.model_dump(exclude={"kind_shares", "validation", "test", "groups", "own_test"}),
            kind_shares=split.shares,
            validation=validation_share(config),
            preprocess=config.data.preprocess,
            scale_target=config.data.scale_target,
            seed=config.seed,
        )
        try:
            return federation.to(config.device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise BadInput(f"device = '{config.device}' cannot be used here ({reason}): use device = 'cpu'") from None

    def graph(self, config: Experiment) -> SimilarityGraph:
        """The similarity graph."""
        federation = self.federation(config)
        section = config.graph
        update = {"weights": "adjacency", **({"kind": "uniform"} if config.partition.pooled else {})}
        section = section.model_copy(update=update)
        known = (config.data, config.partition, validation_share(config), config.seed)
        key = (*known, section, config.reading.sign, config.privacy.message_noise)
        if self._graph is None or self._graph[0] != key:
            self.listener.doing(f"building the {section.kind} graph of {len(federation.train)} clients")
            graph = build_graph(
                federation,
                section.kind,
                neighbours=section.neighbours,
                search=section.search,
                temperature=section.temperature,
                pixels=section.pixels,
                sign=config.reading.sign,
                floor=section.floor,
                message_noise=config.privacy.message_noise,
                seed=config.seed,
            )
            self._graph = (key, graph)
        return self._graph[1]


def model_of(data: Data, section: ModelSection, beside: Path | None = None) -> Model:
    """The model for such data."""
    return build_model(data, section.kind, sample_shape=section.sizes, beside=beside, **section.settings)


def _origin_key(config: Experiment) -> Any:
    """What the loaded data depend on: clients with samples of their own divide them later."""
    section = config.data
    return section if section.has_clients else (section.source, *_loading(config).values())


def _loading(config: Experiment) -> dict[str, Any]:
    """Settings of the partition and others that matter when a data set is loaded."""
    split = config.partition.model_dump(include={"test", "group", "groups", "own_test"})
    return {**split, "seed": config.seed, "task": config.data.task}


def validation_share(config: Experiment) -> float:
    """The share of each client's training samples that is held out; `auto` depends on the algorithm."""
    share = config.partition.validation
    if share != "auto":
        return share
    return 0.2 if getattr(algorithm_named(config.algorithm.name), "validates", False) else 0.0
