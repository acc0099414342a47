"""What a round costs and who failed in it, and how nodes that fail again and again are left out for a while."""

import logging
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import RecordDict

from fedkin.flower.wire import payload

log = logging.getLogger("flwr.fedkin")  # below Flower's own, so that `flwr log` shows it
STRIKES = 3  # so many refusals in a row, and a node is left out
LEFT_OUT = 5  # rounds, the first time; twice as many each time after that
LONGEST = 80  # rounds


@dataclass
class Ledger:
    """What a round cost, in bytes of arrays, and which clients failed in it and why, by their names.

    lost      clients that no longer have the memory they kept in earlier rounds
    struck    clients whose refusals count towards being left out, since they were last counted
    left_out  clients that were not asked as they were refused too often
    """

    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    struck: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def sent(self, name: str, content: RecordDict) -> None:
        """Count a message to a client."""
        self.down[name] = self.down.get(name, 0) + payload(content)

    def received(self, name: str, content: RecordDict) -> None:
        """Count a message from a client."""
        self.up[name] = self.up.get(name, 0) + payload(content)

    def refuse(self, name: str, reason: str, strike: bool = True) -> None:
        """Record what a client did wrong. The round goes on without it.

        strike  whether it counts towards being left out: not if the round closed early, say
        """
        log.warning("%s: %s", name, reason)
        self.refused[name] = reason
        if strike:
            self.struck.append(name)

    def lose(self, name: str) -> None:
        """Record that a client begins with a new memory."""
        log.warning("%s: no longer has what it kept in earlier rounds, and begins anew", name)
        self.lost.append(name)


class Probation:
    """Clients that are refused again and again are left out for a while: 3 times in a row, then for 5 rounds.

    The second time it is 10 rounds, then 20, up to 80. One usable reply and all is forgotten.
    """

    def __init__(self) -> None:
        self._strikes: dict[str, int] = {}
        self._terms: dict[str, int] = {}
        self._until: dict[str, int] = {}

    def refused(self, name: str, round: int) -> None:
        """Count a refusal in a round."""
        self._strikes[name] = self._strikes.get(name, 0) + 1
        if self._strikes[name] >= STRIKES:
            term = self._terms.get(name, LEFT_OUT)
            self._until[name], self._terms[name] = round + 1 + term, min(2 * term, LONGEST)
            self._strikes[name] = STRIKES - 1  # back again, one more refusal is enough
            log.warning("%s was refused %s times in a row, and is left out for %s rounds", name, STRIKES, term)

    def accepted(self, name: str) -> None:
        """A usable reply."""
        for kept in (self._strikes, self._terms, self._until):
            kept.pop(name, None)

    def is_out(self, name: str, round: int) -> bool:
        """Whether a client is left out of a round."""
        return round < self._until.get(name, 0)


def said(refused: Mapping[str, str]) -> str:
    """The most frequent reason for refusals, in parentheses; nothing if there is none.

    >>> said({"0": "error 2: <class 'fedkin.errors.BadInput'>:<'the module has no parameters'>"})
    ' (the module has no parameters)'
    """
    if not refused:
        return ""
    reason, _ = Counter(refused.values()).most_common(1)[0]
    found = re.search(r"<class '(?:[\w.]*\.)?(\w+)'>:<'(.*?)(?:'>)?$", reason)
    return f" ({reason if found is None else found[2] if found[1] == 'BadInput' else f'{found[1]}: {found[2]}'})"
