"""Requests that take long, in slices: between two of them the broker serves others.

A handler that is a generator yields where it has worked for some milliseconds, and returns its Sends at the end. One
that never yields is answered at once. The others go on by `step`, in turn, whenever the broker ticks.
"""

from collections import deque
from collections.abc import Callable, Generator
from typing import Final, NamedTuple, TypeAlias

from mqtrail.store import ConfigFileStore
from mqtrail.wire import Peer, RemotingCommand, Send, SystemBusy

JOBS_MAX: Final = 16  # at once: each keeps its request and what it has made so far
ENTRIES_A_SLICE: Final = 500  # of a table, written as JSON
TOPICS_A_SLICE: Final = 50  # looked at queue by queue

Work: TypeAlias = Generator[None, None, list[Send]]


class Job(NamedTuple):
    """A request that is not answered yet. looked: the change of tables that its answer follows from."""

    peer: Peer
    request: RemotingCommand
    work: Work
    looked: int


class Jobs:
    """The jobs under way."""

    def __init__(self, files: ConfigFileStore) -> None:
        self._files = files
        self._waiting: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, peer: Peer, request: RemotingCommand, work: Work) -> list[Send]:
        """Do the first slice; return the answer if that was all. SystemBusy: too many are under way."""
        try:
            next(work)
        except StopIteration as end:
            return _sends(end)
        if len(self._waiting) >= JOBS_MAX:
            work.close()
            raise SystemBusy(f"found {JOBS_MAX} requests under way that take long, expected fewer: try again")
        self._waiting.append(Job(peer, request, work, self._files.looked))
        return []

    def handler(
        self, start: Callable[[Peer, RemotingCommand, int], Work]
    ) -> Callable[[Peer, RemotingCommand, int], list[Send]]:
        """Return the handler of requests that are worked on in slices."""
        return lambda peer, request, now_ms: self.begin(peer, request, start(peer, request, now_ms))

    def next_due_ms(self) -> int | None:
        """Return 0, at once, while there is a job."""
        return 0 if self._waiting else None

    def take(self) -> Job | None:
        """Return the job whose turn it is."""
        return self._waiting.popleft() if self._waiting else None

    def step(self, job: Job) -> list[Send]:
        """Do a slice of a job that was taken; return what it answers. An error ends it."""
        self._files.look(job.looked)
        try:
            next(job.work)
        except StopIteration as end:
            return _sends(end)
        self._waiting.append(job._replace(looked=self._files.looked))
        return []


def _sends(end: StopIteration) -> list[Send]:
    sends: list[Send] = end.value
    return sends
