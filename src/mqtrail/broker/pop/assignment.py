"""Assignment of queues to clients (400), by PULL or POP (401, 402).

A group consumes a topic by PULL or POP: by its request mode, else by default_request_mode; retry topics always by PULL.
For PULL, queues are assigned by the strategy of the client. For POP with share 0, every client gets all queues; with
share n, each client also pops the queues of the next n clients.

A request about a topic with an unknown route waits for the route (route_book.py), at most ROUTE_WAIT_MS.

Source: QueryAssignmentProcessor, MessageRequestModeManager, apache/rocketmq 5.3.3 broker/.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Final

from mqtrail.wire import (
    ALL_QUEUES,
    RETRY_PREFIX,
    BodyError,
    MessageQueue,
    MQError,
    NoPermission,
    Peer,
    PeerId,
    Perm,
    QueryAssignmentBody,
    QueueAssignment,
    QueueAssignments,
    RemotingCommand,
    RequestMode,
    RequestModeTable,
    Send,
    SubscriptionGroupNotExist,
    SystemBusy,
    SystemError_,
    TopicNotExist,
    TopicRouteData,
    Work,
    answer,
    answer_error,
    dumps_fastjson,
    encode_list_in_slices,
)

from ..bounds import REQUEST_MODES_MAX
from ..files import load_table
from ..jobs import ASSIGNED_A_SLICE
from ..state import BrokerState
from .route_book import QueueCount, RouteBook

MODES_FILE: Final = "messageRequestMode.json"
PULL: Final = "PULL"
POP: Final = "POP"
BROADCASTING: Final = "BROADCASTING"
ROUTE_WAIT_MS: Final = 3_000
WAITING_MAX: Final = 10_000  # requests that wait for a route
ANSWERS_A_SLICE: Final = 100  # of these requests, answered in one slice

Strategy = Callable[[str, range, Sequence[str]], range]
_Share = tuple[range, ...]
"""Queues of a client by number: the queues of the first broker have the numbers from 0, then those of the next one."""
ALL: Final[_Share] = (range(1 << 62),)


def averagely(client_id: str, queues: range, client_ids: Sequence[str]) -> range:
    """Return consecutive queues; the first clients get one more if the number is not divisible."""
    place = client_ids.index(client_id)
    size, more = divmod(len(queues), len(client_ids))
    start = place * size + min(place, more)
    return queues[start : start + size + (place < more)]


def by_circle(client_id: str, queues: range, client_ids: Sequence[str]) -> range:
    """Return every n-th queue."""
    return queues[client_ids.index(client_id) :: len(client_ids)]


STRATEGIES: Final[dict[str, Strategy]] = {
    "AVG": averagely,
    "AVG_BY_CIRCLE": by_circle,
}  # all strategies of 5.3.3's broker


def _table(modes: Mapping[tuple[str, str], RequestMode]) -> RequestModeTable:
    table: dict[str, dict[str, RequestMode]] = {}
    for topic, group in sorted(modes):
        table.setdefault(topic, {})[group] = modes[topic, group]
    return RequestModeTable(table)


class Assignments:
    """Request modes, saved with every change, and assignments."""

    def __init__(self, state: BrokerState) -> None:
        self._config = state.config
        self._files = state.files
        self._topics = state.topics
        self._groups = state.groups
        self._clients = state.clients
        table = load_table(state.files, MODES_FILE, RequestModeTable) or RequestModeTable()
        self.routes = RouteBook(state.config.broker_name)
        self._jobs = state.jobs
        self._waiting: deque[tuple[int, str, Peer, RemotingCommand]] = deque()
        self._ready: deque[tuple[int, str, Peer, RemotingCommand]] = deque()  # requests whose wait for a route is over
        self._modes = {
            (topic, group): mode
            for topic, modes in table.message_request_mode_map.items()
            for group, mode in modes.items()
        }

    def mode(self, topic: str, group: str) -> RequestMode:
        """Return the request mode of a group for a topic."""
        known = self._modes.get((topic, group))
        if known is not None:
            return known
        mode = PULL if topic.startswith(RETRY_PREFIX) else self._config.default_request_mode
        share = self._config.default_pop_share_queue_nums if mode == POP else 0
        return RequestMode(topic, group, mode, share)

    def set_mode(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """401. NoPermission: a retry topic. TopicNotExist, SubscriptionGroupNotExist. BodyError: no such mode."""
        mode = RequestMode.decode(request.body)
        if mode.topic.startswith(RETRY_PREFIX):
            raise NoPermission(f"retry topic is not allowed to set mode: found {mode.topic}, expected the topic itself")
        if mode.mode not in (PULL, POP):
            raise BodyError(f"found the mode {mode.mode!r:.20}, expected {PULL} or {POP}")
        if mode.topic not in self._topics:
            raise TopicNotExist(f"topic[{mode.topic}] not exist")
        if self._groups.find(mode.consumer_group, now_ms) is None:
            raise SubscriptionGroupNotExist(
                f"subscription group does not exist: create {mode.consumer_group} with updateSubGroup"
            )
        before = self._modes.get((mode.topic, mode.consumer_group))
        if before is None and len(self._modes) >= REQUEST_MODES_MAX:
            raise SystemError_(
                f"found {len(self._modes)} modes, expected fewer than {REQUEST_MODES_MAX}: "
                "set defaultMessageRequestMode for all groups"
            )
        self._set(mode.topic, mode.consumer_group, mode)
        self._files.change(MODES_FILE, self._document, lambda: self._set(mode.topic, mode.consumer_group, before))
        return answer(peer, request)

    def _set(self, topic: str, group: str, mode: RequestMode | None) -> None:
        if mode is None:
            self._modes.pop((topic, group), None)
        else:
            self._modes[topic, group] = mode

    def adopt(self, table: RequestModeTable) -> None:
        """On a slave: take the modes of the master."""
        modes = {
            (topic, group): mode
            for topic, modes in table.message_request_mode_map.items()
            for group, mode in modes.items()
        }
        before = self._modes
        if modes != before:
            self._modes = modes
            self._files.change(MODES_FILE, self._document, lambda: self._restore(before))

    def _restore(self, modes: dict[tuple[str, str], RequestMode]) -> None:
        self._modes = modes

    def forget_topic(self, topic: str) -> None:
        """Remove the modes of a deleted topic."""
        self._forget({key: mode for key, mode in self._modes.items() if key[0] == topic})

    def forget_group(self, group: str) -> None:
        """Remove the modes of a deleted group."""
        self._forget({key: mode for key, mode in self._modes.items() if key[1] == group})

    def _forget(self, modes: dict[tuple[str, str], RequestMode]) -> None:
        if not modes:
            return
        for key in modes:
            del self._modes[key]
        self._files.change(MODES_FILE, self._document, lambda: self._modes.update(modes))

    def _document(self) -> Callable[[], bytes]:
        modes = self._modes.copy()
        return lambda: dumps_fastjson(_table(modes).members())

    def all_modes(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """402: the whole table, for slaves."""
        return answer(peer, request, {}, body=_table(self._modes).encode(strict=False))

    def query(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """400: the queues of the client. An empty body means unknown: the client keeps its queues."""
        body = QueryAssignmentBody.decode(request.body)
        others = self.routes.others(body.topic, now_ms)
        if others is None:
            if len(self._waiting) + len(self._ready) >= WAITING_MAX:
                raise SystemBusy(f"found {WAITING_MAX} requests waiting for routes, expected fewer: try again later")
            self._waiting.append((now_ms + ROUTE_WAIT_MS, body.topic, peer, request))
            return []
        return self._jobs.begin(peer, request, self._answer(peer, request, body, others))

    def learn_route(self, topic: str, route: TopicRouteData | None, now_ms: int) -> list[Send]:
        """Store a route; answer the requests that waited for it. None: no name server has it."""
        self.routes.learn(topic, route)
        waiting, self._waiting = self._waiting, deque()
        for question in waiting:
            if question[1] == topic:
                self._ready.append(question)
            else:
                self._waiting.append(question)
        return self._answer_ready(now_ms)

    def next_due_ms(self) -> int | None:
        """Return when the oldest request times out; 0: some can be answered now."""
        if self._ready:
            return 0
        return self._waiting[0][0] if self._waiting else None

    def tick(self, now_ms: int) -> list[Send]:
        """Answer requests whose route arrived; those that timed out get the queues of this broker only."""
        while self._waiting and self._waiting[0][0] <= now_ms:
            self._ready.append(self._waiting.popleft())
        return self._answer_ready(now_ms)

    def _answer_ready(self, now_ms: int) -> list[Send]:
        """Answer some of the requests whose wait is over; `tick` continues with the others."""
        sends: list[Send] = []
        for _ in range(min(ANSWERS_A_SLICE, len(self._ready))):
            _, topic, peer, request = self._ready.popleft()
            body = QueryAssignmentBody.decode(request.body)
            others = self.routes.others(topic, now_ms) or ()
            try:
                sends += self._jobs.begin(peer, request, self._answer(peer, request, body, others))
            except MQError as error:
                sends += answer_error(peer, request, error)
        return sends

    def disconnect(self, peer: PeerId) -> None:
        """Remove the requests of a closed connection."""
        self._waiting = deque(question for question in self._waiting if question[2].id != peer)
        self._ready = deque(question for question in self._ready if question[2].id != peer)

    def _answer(
        self, peer: Peer, request: RemotingCommand, body: QueryAssignmentBody, others: Sequence[QueueCount]
    ) -> Work:
        mode = self.mode(body.topic, body.consumer_group)
        counts = sorted(entry for entry in (*self._own_queues(body.topic), *others) if entry[1] > 0)
        numbers = self._share(body, mode, sum(count for _, count in counts)) if counts else None
        if numbers is None:
            return answer(peer, request, body=QueueAssignments().encode())
        found = (
            QueueAssignment(MessageQueue(body.topic, broker_name, queue_id), mode.mode)
            for broker_name, queue_id in _queues_of(counts, numbers)
        )
        bare = QueueAssignments(())
        encoded = yield from encode_list_in_slices(bare, "messageQueueAssignments", found, ASSIGNED_A_SLICE)
        return answer(peer, request, body=encoded)

    def _share(self, body: QueryAssignmentBody, mode: RequestMode, count: int) -> _Share | None:
        """Return the numbers of the client's queues, in [0, count), possibly none; ALL: all queues of each broker.

        None: unknown group or strategy.
        """
        everything = (range(count),)
        if body.message_model == BROADCASTING or not self._config.server_load_balance:
            return everything
        group = self._clients.consumer_group(body.consumer_group)
        strategy = STRATEGIES.get(body.strategy_name)
        if group is None or strategy is None:
            return None
        client_ids = group.client_ids()
        if mode.mode == POP:
            return _share_pops(strategy, body.client_id, range(count), client_ids, mode.pop_share_queue_num)
        return (strategy(body.client_id, range(count), client_ids),) if body.client_id in client_ids else ()

    def _own_queues(self, topic: str) -> list[QueueCount]:
        config = self._topics.get(topic)
        if config is None or not config.perm & Perm.READ:
            return []
        return [(self._config.broker_name, config.read_queue_nums)]


def _share_pops(strategy: Strategy, client_id: str, numbers: range, client_ids: Sequence[str], share: int) -> _Share:
    if share <= 0 or share >= len(client_ids) - 1:
        return ALL
    if client_id not in client_ids:
        return ()
    place = client_ids.index(client_id)
    if len(client_ids) > len(numbers):  # fewer queues than clients: queues are shared
        return (numbers[place % len(numbers) :][:1],)
    steps = range(place, place + share + 1)
    return tuple(strategy(client_ids[step % len(client_ids)], numbers, client_ids) for step in steps)


def _queues_of(counts: Sequence[QueueCount], numbers: _Share) -> Iterator[tuple[str, int]]:
    """Yield broker and queue id of each numbered queue, once."""
    if numbers is ALL:
        for broker_name, _ in counts:
            yield broker_name, ALL_QUEUES
        return
    ends = list(accumulate(count for _, count in counts))
    for number in dict.fromkeys(chain.from_iterable(numbers)) if len(numbers) > 1 else chain.from_iterable(numbers):
        broker = bisect_right(ends, number)
        broker_name, count = counts[broker]
        yield broker_name, number - ends[broker] + count
