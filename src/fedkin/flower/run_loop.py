"""The loop of a run on Flower: rounds, repeated where replies are missing and mended where they spoil the model."""

import math
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import flwr.serverapp.strategy
import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedkin.algorithms import Round, name_of
from fedkin.algorithms.registry import settings_of
from fedkin.engine.simulation import State
from fedkin.errors import BadInput
from fedkin.files import finite
from fedkin.flower.checks import OTHER_LOOP
from fedkin.flower.evaluation import EvaluateFn, Metrics, Outcome, averaged_by_samples, loss_of_nodes
from fedkin.flower.guard import LossWatch, SizeGuard, loss_in, suspects
from fedkin.flower.ledger import Ledger, Probation, log, said
from fedkin.flower.nodes import Nodes
from fedkin.flower.protection import Protection
from fedkin.flower.roster import Roster, from_text_tensor, text_tensor
from fedkin.flower.run_records import RunRecords, in_words
from fedkin.flower.settings import StrategySettings, check_steps, recorded_settings
from fedkin.flower.transport import Asked, Transport, all_raised
from fedkin.flower.wire import FIRST, flatten, unflatten
from fedkin.types import Record, Tensors

RUN = "run"  # the name of a checkpoint's tensor with the run's identity
ATTEMPTS = 10  # so often a round is tried before the run gives up


class Diverged(Exception):  # noqa: N818 - no error: the run ends
    """Most nodes sent models that are not finite."""


class RunLoop(StrategySettings, flwr.serverapp.strategy.Strategy):
    """Executes runs. What is sent and how replies are combined is left to `fedkin.flower.Strategy`.

    nodes   who they are, and which are available
    ledger  what the present round cost, and who failed in it
    """

    def __init__(self) -> None:
        self.nodes = Nodes(self.graph, self.floor, self.identity)
        self.ledger = Ledger()
        self._guard, self._watch, self._probation = SizeGuard(self._most), LossWatch(), Probation()
        self._state = self._before = State({})  # after the last round, and before it
        self._first = torch.zeros(1, 0)  # the first global model, (1, P)
        self._run = ""  # identifies the run, also when it is continued
        self._asked = self._evaluating = Asked()
        self._used: dict[int, Tensors] = {}  # the replies of which the state was made
        self.protection = Protection(self.privacy)
        self._private: Record = {}  # what nodes of the round are asked to do with their uploads

    @property
    def _most(self) -> float | str | None:
        """The largest update; what is clipped or masked is not judged by what others send."""
        return self.max_norm if self.privacy is None and self.secure is None else None

    @abstractmethod
    def _combine(self, replies: dict[int, Tensors]) -> Round:
        """Set the state after a round with these replies."""

    @abstractmethod
    def _evaluations(self, replies: Iterable[Message]) -> list[Metrics]:
        """The metrics of nodes that can be used."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Execute the run, or what is left of it. The arguments are those of every Flower strategy.

        timeout  how many seconds a round waits for its replies. Flower itself takes up to a minute to notice that a
                 machine has disappeared.
        """
        self._like, self._first = initial_arrays, flatten(initial_arrays)[None]
        self.summary()
        check_steps(self, self._first)
        records, result = RunRecords(self.out), Result(arrays=initial_arrays)
        with records.opened(recorded_settings(self, num_rounds)):
            if (model := records.finished(num_rounds)) is not None:
                result.arrays = unflatten(model, initial_arrays)
                records.fill(result)
                return result
            state = records.resume()
            self._begin(state, timeout)
            self.protection.begin(num_rounds, min(1.0, (self.take_part or self.min_nodes) / self.min_nodes))
            if state is not None:
                result.arrays = unflatten(state.model, initial_arrays)
            elif evaluate_fn and (found := evaluate_fn(0, initial_arrays)) is not None:
                result.evaluate_metrics_serverapp[0] = found
                self._watch.see(loss_in(found))
            for record in records.done:
                self._watch.see(loss_in(record))
            records.fill(result)
            diverged = False
            while self._state.round < num_rounds and not diverged:
                try:
                    record = self._round(grid, result, train_config, evaluate_config, evaluate_fn)
                except Diverged:  # the last model stays
                    diverged, record = True, self._record({})
                record |= self.protection.record(records.done, record["replies"], record["attempts"])
                records.add(record, self._state)
                log.info("round %s/%s: %s", record["round"] + 1, num_rounds, in_words(record))
                diverged = diverged or not self._is_finite(loss_in(record))
            if diverged:
                log.error("the run diverged: lower the step size")
            name, hyper = name_of(self.algorithm), settings_of(self.algorithm)
            if self.own_loops:
                del hyper["step_size"]
            spent = self.protection.summary(records.done)
            records.finish(name, hyper, self.threshold, self._state.model, diverged, spent)
        return result

    def _is_finite(self, loss: float | None) -> bool:
        """Whether the model is finite, and its loss if one is known."""
        return bool(self._state.model.isfinite().all()) and (loss is None or math.isfinite(loss))

    def _begin(self, state: State | None, timeout: float) -> None:
        """Start, or continue from a state."""
        saved = {} if state is None else state.memory
        self._guard, self._watch, self._probation = SizeGuard(self._most, saved), LossWatch(), Probation()
        self._asked = Asked()
        # Without server state: the algorithm starts once the first nodes are known.
        self._state, self._first = state or State({}), saved.get(FIRST, self._first)
        self._run = from_text_tensor(saved[RUN]) if RUN in saved else secrets.token_hex(8)
        shapes = [array.shape for array in self._like.values()]
        self.nodes = Nodes(
            self.graph,
            self.floor,
            self.identity,
            Roster.from_tensors(saved) if saved else None,
            transport=Transport(self.fraction, self.deadline),
            parameters=self._first.shape[-1],
            dimensions={n for shape in shapes for n in (*shape, math.prod(shape[1:]))},
            changing_data=self.changing_data,
            message_noise=0.0 if self.privacy is None else self.privacy.message_noise,
        )
        self.nodes.transport.timeout = timeout

    def _round(
        self,
        grid: Grid,
        result: Result,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: EvaluateFn | None,
    ) -> Record:
        """One round, repeated until enough replies are usable; its record."""
        began, number = time.perf_counter(), self._state.round + 1
        self.ledger = Ledger()
        attempts = 0
        outcome: Outcome | None = None

        def measure() -> Outcome:
            return self._measured(grid, number, evaluate_config or ConfigRecord(), evaluate_fn)

        while outcome is None:
            if attempts == ATTEMPTS:
                raise RuntimeError(
                    f"round {number} had fewer than {self.min_replies} usable replies {ATTEMPTS} times"
                    f"{said(self.ledger.refused)}: look at the nodes' logs; the same command continues"
                )
            attempts += 1
            messages = list(self.configure_train(number, result.arrays, train_config or ConfigRecord(), grid))
            if self.secure is not None:
                trained, numbers = self._summed(grid, number), None
            else:
                replies = self.nodes.transport.exchange(grid, messages, self.min_replies)
                trained, numbers = self.aggregate_train(number, [reply for _, reply in replies])
                if trained is None and messages and all_raised([reply for _, reply in replies], len(messages)):
                    raise RuntimeError(
                        f"the app of every node failed in round {number}{said(self.ledger.refused)}: mend it; the same "
                        "command continues"
                    )
                self._check_loops()
            if trained is not None:
                outcome = measure()
                # With noise a round may be bad, and to take it back would tell of single clients.
                if self.privacy is None and self.secure is None and self._watch.is_worse(outcome.loss):
                    outcome = self._mended(outcome, measure)
            self._judge()
        self._close()
        self._watch.see(outcome.loss)
        result.arrays = unflatten(self._state.model, self._like)
        for kept, found in (
            (result.train_metrics_clientapp, numbers),
            (result.evaluate_metrics_clientapp, outcome.seen),
            (result.evaluate_metrics_serverapp, outcome.measured),
        ):
            if found is not None:
                kept[number] = found
        # What the nodes say of their training and of the new model.
        said_by_nodes = {"train_metrics": numbers, "evaluate_metrics": outcome.seen}
        return {
            **self._record(outcome.measured or {}, time.perf_counter() - began, attempts),
            **{key: finite(dict(found)) for key, found in said_by_nodes.items() if found},
        }

    def _summed(self, grid: Grid, number: int) -> ArrayRecord | None:
        """Combine the secure sum of the sampled nodes' updates; None if too few nodes stayed."""
        assert self.secure is not None
        clients = {message.metadata.dst_node_id: client for message, client in self._asked.messages}
        orders = {message.metadata.dst_node_id: message.content for message, _ in self._asked.messages}
        roster, by_samples = self.nodes.roster, self.weights == "samples"
        heaviest = float(roster.sizes.max()) if by_samples else 1.0
        limit = max(self.secure.limit, self.protection.largest)

        def exchange(messages: Sequence[Message]) -> list[Message]:
            return [reply for _, reply in self.nodes.transport.exchange(grid, messages)]

        found = replace(self.secure, limit=limit).average(exchange, orders, number, heaviest, by_samples)
        stayed = {} if found is None else {clients[node]: found.sent.get(node, 0) for node in found.nodes}
        for client in set(clients.values()) - set(stayed):
            self.ledger.refuse(roster.names[client], "did not stay until the end of the secure sum")
        if found is None or len(stayed) < self.min_replies:
            log.warning("round %s: a secure sum of %s nodes has %s left: repeated", number, len(clients), len(stayed))
            return None
        self.ledger.up |= {roster.names[client]: count for client, count in stayed.items()}
        # The mean of models that are all the mean is that mean.
        mean = self._before.model + found.update
        self._combine({client: {"model": mean} for client in stayed})
        return unflatten(self._state.model, self._like)

    def _record(self, measured: Mapping[str, object], seconds: float = 0.0, attempts: int = 1) -> Record:
        """The record of the round that the ledger is about."""
        return {
            "round": self._before.round,
            **finite(dict(measured)),
            "seconds": round(seconds, 6),
            "attempts": attempts,
            "asked": len(self._asked.messages),
            "replies": len(self._used),
            "bytes_down": self._in_order(self.ledger.down),
            "bytes_up": self._in_order(self.ledger.up),
            "refused": self.ledger.refused,
            **({"memory_lost": self.ledger.lost} if self.ledger.lost else {}),
            **({"left_out": self.ledger.left_out} if self.ledger.left_out else {}),
        }

    def _in_order(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Bytes of each client, in the order of their numbers: records do not depend on who was quicker."""
        names = self.nodes.roster.names
        known = {name: counts[name] for name in names if name in counts}
        return known | {name: count for name, count in counts.items() if name not in known}

    def _check_loops(self) -> None:
        """Raise if no node trains in the way that is on record: it would not do so in another attempt either."""
        other = OTHER_LOOP[self.own_loops]
        if not self._used and self.ledger.refused and set(self.ledger.refused.values()) == {other}:
            raise BadInput(f"every node {other}")

    def _measured(self, grid: Grid, number: int, config: ConfigRecord, evaluate_fn: EvaluateFn | None) -> Outcome:
        """How good the present model is."""
        arrays = unflatten(self._state.model, self._like)
        messages = list(self.configure_evaluate(number, arrays, config, grid))
        replies = self.nodes.transport.exchange(grid, messages, 1)
        numbers = self._evaluations([reply for _, reply in replies])
        found = evaluate_fn(number, arrays) if evaluate_fn else None
        loss = loss_in(found)
        return Outcome(found, averaged_by_samples(numbers), loss_of_nodes(numbers) if loss is None else loss)

    def _mended(self, spoiled: Outcome, measure: Callable[[], Outcome]) -> Outcome | None:
        """The round without the clients that made the model far worse; none if too few are left, and it is repeated.

        A round that no minority of its clients explains stays as it is: then the step size is too large.
        """
        whole, replies, usual = self._state, self._used, self._watch.usual
        for out in suspects(replies, self._before.model):
            self._combine({client: vectors for client, vectors in replies.items() if client not in out})
            outcome = measure()
            if not self._watch.is_worse(outcome.loss):
                for client in out:
                    reason = f"its reply raised the loss from {usual:.3g} to {spoiled.loss:.3g}: rolled back"
                    self.ledger.refuse(self.nodes.roster.names[client], reason)
                if len(self._used) >= self.min_replies:
                    return outcome
                self._state, self._used = self._before, {}
                return None
        self._state, self._used = whole, replies
        log.warning("the loss rose from %.3g to %.3g, and no node alone explains it", usual, spoiled.loss)
        return spoiled

    def _judge(self) -> None:
        """Count refusals and usable replies towards being left out."""
        for name in self.ledger.struck:
            self._probation.refused(name, self._before.round)
        self.ledger.struck.clear()
        for client in self._used:
            self._probation.accepted(self.nodes.roster.names[client])

    def _close(self) -> None:
        """End a round: remember whose replies counted and what is usual, for the checkpoint, too."""
        number, used = self._before.round, np.array(sorted(self._used))
        self._guard.learn(self._used, self._before.model)
        self.nodes.roster = self.nodes.roster.counting(used, number)
        # A copy, as the server's state may hold the same tensor, which a checkpoint file cannot.
        first = {FIRST: self._first.clone()} if self.algorithm.at(number).remember(self._first) else {}
        kept = {**self.nodes.roster.tensors(), **self._guard.tensors(), RUN: text_tensor(self._run), **first}
        self._state = replace(self._state, memory=kept)

    def summary(self) -> None:
        """Log what is about to be done."""
        log.info(
            "%s on the %s graph, weights by %s; %s%s",
            self.algorithm,
            self.graph,
            self.weights,
            self.local,
            f"; records in {self.out}" if self.out else "",
        )
        if not self.own_loops and (caution := self.algorithm.caution(self.local)):
            log.warning("%s", caution)
