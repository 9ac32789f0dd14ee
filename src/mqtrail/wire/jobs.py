"""Long requests in slices: between two slices a broker or a name server serves other requests.

A handler that is a generator yields after some milliseconds of work, and returns its Sends at the end. A request whose
handler never yields is answered at once. The others continue by `step`, in turn, whenever the server ticks. There are
two kinds: requests whose work depends on their body alone, and requests that go through tables. Each kind has these
limits:

    JOBS_MAX           running at once: each keeps its request and its partial result
    JOBS_PEER_MAX      of these from one connection
    QUEUED_MAX         wait for their first slice: each keeps its request
    QUEUED_PEER_MAX    of these from one connection
    QUEUED_SIZE_MAX    bytes of their bodies

Further requests are refused before any work is done.
"""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable
from heapq import merge
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from .command import RemotingCommand
from .effects import Peer, PeerId, Send
from .errors import SystemBusy

__all__ = [
    "JOBS_MAX",
    "Job",
    "Jobs",
    "Work",
    "sorted_in_slices",
]

JOBS_MAX: Final = 16
JOBS_PEER_MAX: Final = 4
QUEUED_MAX: Final = 1_000
QUEUED_PEER_MAX: Final = 100
QUEUED_SIZE_MAX: Final = 64 * 1024 * 1024
SORTED_A_SLICE: Final = 5_000

Sortable = TypeVar("Sortable", bound=Any)

Work: TypeAlias = Generator[None, None, list[Send]]


def sorted_in_slices(items: Iterable[Sortable]) -> Generator[None, None, list[Sortable]]:
    """Return the items sorted, yielding after each SORTED_A_SLICE of them. They are copied before the first yield."""
    copied = list(items)
    if len(copied) <= SORTED_A_SLICE:
        return sorted(copied)
    parts = []
    for first in range(0, len(copied), SORTED_A_SLICE):
        parts.append(sorted(copied[first : first + SORTED_A_SLICE]))
        yield
    merged = []
    for item in merge(*parts):
        merged.append(item)
        if len(merged) % SORTED_A_SLICE == 0:
            yield
    return merged


class Tables(Protocol):
    """The part of a ConfigFileStore that tracks which change an answer depends on."""

    dependency: int

    def depend_on(self, number: int) -> None: ...


class Job(NamedTuple):
    """A request that is not answered yet. dependency: the change of tables that its answer depends on."""

    peer: Peer
    request: RemotingCommand
    work: Work
    dependency: int


class _JobLine:
    """Jobs that share the limits of the module: the running ones and the queued ones."""

    def __init__(self) -> None:
        self.under_way: deque[Job] = deque()
        self._queued: deque[Job] = deque()
        self._queued_size = 0

    def __len__(self) -> int:
        return len(self.under_way) + len(self._queued)

    def may_start(self, job: Job) -> bool:
        return (
            len(self.under_way) < JOBS_MAX
            and sum(other.peer.id == job.peer.id for other in self.under_way) < JOBS_PEER_MAX
        )

    def queue(self, job: Job) -> None:
        """Let a job wait for its first slice. SystemBusy: too many wait."""
        size = self._queued_size + len(job.request.body)
        of_peer = sum(other.peer.id == job.peer.id for other in self._queued)
        for what, found, limit in (
            ("requests", len(self._queued) + 1, QUEUED_MAX),
            ("requests of one connection", of_peer + 1, QUEUED_PEER_MAX),
            ("bytes of requests", size, QUEUED_SIZE_MAX),
        ):
            if found > limit:
                raise SystemBusy(
                    f"found {found} {what} waiting behind long requests, expected at most {limit}: try again later"
                )
        self._queued.append(job)
        self._queued_size = size

    def disconnected(self, peer: PeerId) -> None:
        """Drop the queued jobs of a closed connection; its running jobs continue."""
        if any(job.peer.id == peer for job in self._queued):
            self._queued = deque(job for job in self._queued if job.peer.id != peer)
            self._queued_size = sum(len(job.request.body) for job in self._queued)

    def take(self) -> Job | None:
        """Return the job whose turn it is."""
        for place, job in enumerate(self._queued):
            if self.may_start(job):
                del self._queued[place]
                self._queued_size -= len(job.request.body)
                self.under_way.append(job)
                break
        return self.under_way.popleft() if self.under_way else None


class Jobs:
    """The jobs of a server. bounded_codes: requests whose work depends on their body alone.

    They do not wait behind requests that go through tables, of which a few can take very long: a broker without
    heartbeats, locks and batches would lose its clients. Each of the two kinds has the limits of the module.
    """

    def __init__(self, tables: Tables, bounded_codes: Collection[int] = ()) -> None:
        self._tables = tables
        self._bounded_codes = bounded_codes
        self._bounded, self._of_tables = _JobLine(), _JobLine()
        self._turn = 0

    def __len__(self) -> int:
        return len(self._bounded) + len(self._of_tables)

    def _line(self, request: RemotingCommand) -> _JobLine:
        return self._bounded if request.code in self._bounded_codes else self._of_tables

    def begin(self, peer: Peer, request: RemotingCommand, work: Work) -> list[Send]:
        """Run the first slice, or queue the job. Return the answer if the slice completed it. SystemBusy: too many
        jobs wait."""
        job, line = Job(peer, request, work, 0), self._line(request)
        if not line.may_start(job):
            line.queue(job)
            return []
        try:
            next(work)
        except StopIteration as end:
            return _sends(end)
        line.under_way.append(job._replace(dependency=self._tables.dependency))
        return []

    def handler(
        self, start: Callable[[Peer, RemotingCommand, int], Work]
    ) -> Callable[[Peer, RemotingCommand, int], list[Send]]:
        """Return a handler that runs start's generator in slices."""
        return lambda peer, request, now_ms: self.begin(peer, request, start(peer, request, now_ms))

    def disconnected(self, peer: PeerId) -> None:
        """Drop the queued jobs of a closed connection; its running jobs continue."""
        self._bounded.disconnected(peer)
        self._of_tables.disconnected(peer)

    def next_due_ms(self) -> int | None:
        """Return 0 (at once) while there is a job; None: there is none."""
        return 0 if len(self) else None

    def take(self) -> Job | None:
        """Return the job whose turn it is; the two kinds alternate."""
        self._turn += 1
        first, second = (self._bounded, self._of_tables) if self._turn % 2 else (self._of_tables, self._bounded)
        return first.take() or second.take()

    def step(self, job: Job) -> list[Send]:
        """Run a slice of a job that was taken; return the answer if that completed it. An error ends the job."""
        self._tables.depend_on(job.dependency)
        try:
            next(job.work)
        except StopIteration as end:
            return _sends(end)
        self._line(job.request).under_way.append(job._replace(dependency=self._tables.dependency))
        return []


def _sends(end: StopIteration) -> list[Send]:
    sends: list[Send] = end.value
    return sends
