"""Answers that many ask for at about the same time: each is found once, and given to all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from .cluster import BrokersAnswer, ClusterAnswers, LagAnswer
    from .operations import NameServersAnswer

JOINED_S: Final = 5.0  # an answer is given again for so long; pages ask again after more than that
T = TypeVar("T")


@dataclass(slots=True)
class _Asked:
    """A question that was asked. found_s: when its answer was found; None: not yet."""

    answer: Future[Any] = field(default_factory=Future)
    found_s: float | None = None


class JoinedAnswers:
    """Questions to one source. Thread safe. The number of different questions is that of the program's own calls."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: dict[Hashable, _Asked] = {}

    def get(self, question: Hashable, ask: Callable[[], T]) -> T:
        """Return ask(), or what it returned or raised to others who asked this now or in the last seconds.

        Failures are shared too: a source that does not answer is waited for once.
        """
        with self._lock:
            asked = self._asked.get(question)
            if asked is None or (asked.found_s is not None and self._clock() - asked.found_s > JOINED_S):
                asked = self._asked[question] = mine = _Asked()
            else:
                mine = None
        if mine is not None:
            try:
                mine.answer.set_result(ask())
            except BaseException as error:  # also those who wait for it must end
                mine.answer.set_exception(error)
            mine.found_s = self._clock()
        found: T = asked.answer.result()
        return found


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """Questions to a cluster for pages that everyone keeps open. Thread safe."""

    cluster: ClusterAnswers
    joined: JoinedAnswers

    def brokers(self) -> BrokersAnswer:
        """Return every broker with its counters, as of the last seconds."""
        return self.joined.get("brokers", self.cluster.brokers)

    def name_servers(self) -> NameServersAnswer:
        """Return the settings of each name server, as of the last seconds."""
        return self.joined.get("name servers", self.cluster.name_servers)

    def lag(self) -> LagAnswer:
        """Return what all groups still have to read, as of the last seconds."""
        return self.joined.get("lag", self.cluster.lag)
