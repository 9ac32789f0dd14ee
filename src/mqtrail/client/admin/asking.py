"""Questions to the brokers of one cluster: a bounded number at once, and none to a broker that did not answer."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

from mqtrail.net import ConnectError, ConnectionClosed, RequestTimeout
from mqtrail.wire import MessageQueue, MQError, TopicNotExist

from ..consumer import PullResult
from .access import AdminAccess
from .base import for_each

T = TypeVar("T")
U = TypeVar("U")
PULL_COUNT: Final = 32  # records of one pull of a walk


class BrokerTopic(NamedTuple):
    """A topic on one broker."""

    broker_name: str
    topic: str


Ranges = Mapping[int, tuple[int, int]]
"""Queue id -> [first kept offset, end)."""


class Asking:
    """Asks the masters of a cluster, and keeps what was not answered. masters: address by broker name."""

    def __init__(self, admin: AdminAccess) -> None:
        self.admin = admin
        self.masters: dict[str, str] = {}
        self.silent: dict[str, str] = {}
        """Broker that gets no more questions -> why."""
        self._problems: dict[str, None] = {}  # in order, once

    async def find_masters(self) -> None:
        """Ask a name server for the brokers. NoNameServer."""
        info = await self.admin.cluster()
        self.masters = await self.admin.masters()
        for name in sorted(info.broker_addr_table.keys() - self.masters.keys()):
            self.silent[name] = "no master is registered"
            self.note(f"broker {name} has no master: its queues are unknown")
        if not info.broker_addr_table:
            self.note("the name servers know no broker, so the lag of all groups is unknown")

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each question without an answer."""
        return tuple(self._problems)

    def note(self, problem: str) -> None:
        """Add a problem, once."""
        self._problems[problem] = None

    async def each(self, items: Collection[T], ask: Callable[[T], Awaitable[None]]) -> None:
        """Call ask for every item, REQUESTS_AT_ONCE_MAX at a time."""
        await for_each(items, ask)

    async def each_master(self, ask: Callable[[str, str], Awaitable[None]]) -> None:
        """Call ask with name and address of every master."""
        await self.each(self.masters.items(), lambda one: ask(*one))

    async def ask(self, name: str, what: str, call: Callable[[], Awaitable[U]]) -> U | str:
        """Return a broker's answer, or why there is none. Each request has the timeout of the client's settings."""
        if name in self.silent:
            return f"broker {name}: {self.silent[name]}"
        try:
            return await call()
        except (ConnectError, ConnectionClosed, RequestTimeout, OSError) as error:
            if name not in self.silent:
                self.silent[name] = str(error)
                self.note(f"broker {name} did not answer, so its queues are unknown: {error}")
            return f"broker {name}: {error}"
        except MQError as error:  # a refusal, or an answer that cannot be read
            self.note(f"{what} on broker {name}: {error}")
            return f"{what} on broker {name}: {error}"

    async def pull(self, queue: MessageQueue, offset: int, count_max: int) -> PullResult | str:
        """Pull within a queue's range, without a group; or return why there is no answer."""
        name = queue.broker_name
        call = partial(self.admin.pull, queue, offset, count_max, address=self.masters[name])
        return await self.ask(name, f"messages of {queue.topic}/{queue.queue_id}", call)

    async def walk(self, queue: MessageQueue, begin: int, end: int, see: Callable[[bytes], None]) -> str:
        """Call `see` with each record at the offsets [begin, end) of a queue; return why the rest is unknown, or ''."""
        offset = begin
        while offset < end:
            answer = await self.pull(queue, offset, min(PULL_COUNT, end - offset))
            if isinstance(answer, str):
                return answer
            if answer.next_offset <= offset:
                return f"{queue.topic} could not be read at {offset}"
            offset = answer.next_offset
            for record in answer.records:
                see(record)
        return ""

    async def ranges(self, of: BrokerTopic) -> Ranges | str | None:
        """Return the ranges of a topic's queues; None: the broker does not have it; or why there is no answer."""

        async def ranges() -> Ranges | None:
            try:
                stats = await self.admin.broker_topic_stats(self.masters[of.broker_name], of.topic)
            except TopicNotExist:
                return None
            return {queue.queue_id: (one.min_offset, one.max_offset) for queue, one in stats.offset_table.items()}

        return await self.ask(of.broker_name, f"ranges of {of.topic}", ranges)
