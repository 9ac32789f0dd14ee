"""Assignment of queues to clients (400), by PULL or POP (401, 402).

A group consumes a topic by PULL or POP: by its request mode, else by default_request_mode; retry topics always by PULL.
For PULL, queues are assigned by the strategy of the client. For POP with share 0, every client gets all queues; with
share n, each client also pops the queues of the next n clients.

A request about a topic with an unknown route waits for the route (route_book.py), at most ROUTE_WAIT_MS.

Source: QueryAssignmentProcessor, MessageRequestModeManager, apache/rocketmq 5.3.3 broker/.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mqtrail.wire import (
    RETRY_PREFIX,
    BodyError,
    MessageQueue,
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
    answer,
    dumps_fastjson,
)

from ..bounds import REQUEST_MODES_MAX
from ..files import load_table
from ..state import BrokerState
from .route_book import RouteBook

MODES_FILE: Final = "messageRequestMode.json"
PULL: Final = "PULL"
POP: Final = "POP"
BROADCASTING: Final = "BROADCASTING"
ALL_QUEUES: Final = -1
ROUTE_WAIT_MS: Final = 3_000
WAITING_MAX: Final = 10_000  # requests that wait for a route

Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]


def averagely(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Return consecutive queues; the first clients get one more if the number is not divisible."""
    place = client_ids.index(client_id)
    size, more = divmod(len(queues), len(client_ids))
    start = place * size + min(place, more)
    return list(queues[start : start + size + (place < more)])


def by_circle(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Return every n-th queue."""
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


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
        self._waiting: deque[tuple[int, str, Peer, RemotingCommand]] = deque()
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
            if len(self._waiting) >= WAITING_MAX:
                raise SystemBusy(f"found {WAITING_MAX} requests waiting for routes, expected fewer: try again later")
            self._waiting.append((now_ms + ROUTE_WAIT_MS, body.topic, peer, request))
            return []
        return self._answer(peer, request, body, others)

    def learn_route(self, topic: str, route: TopicRouteData | None, now_ms: int) -> list[Send]:
        """Store a route; answer the requests that waited for it. None: no name server has it."""
        self.routes.learn(topic, route)
        return self._answer_waiting(lambda deadline_ms, waited_for: waited_for == topic, now_ms)

    def next_due_ms(self) -> int | None:
        """Return when the oldest request times out."""
        return self._waiting[0][0] if self._waiting else None

    def tick(self, now_ms: int) -> list[Send]:
        """Answer requests that timed out, with the queues of this broker only."""
        return self._answer_waiting(lambda deadline_ms, topic: deadline_ms <= now_ms, now_ms)

    def _answer_waiting(self, is_over: Callable[[int, str], bool], now_ms: int) -> list[Send]:
        waiting, self._waiting = self._waiting, deque()
        sends: list[Send] = []
        for deadline_ms, topic, peer, request in waiting:
            if is_over(deadline_ms, topic):
                body = QueryAssignmentBody.decode(request.body)
                sends += self._answer(peer, request, body, self.routes.others(topic, now_ms) or ())
            else:
                self._waiting.append((deadline_ms, topic, peer, request))
        return sends

    def disconnect(self, peer: PeerId) -> None:
        """Remove the requests of a closed connection."""
        self._waiting = deque(question for question in self._waiting if question[2].id != peer)

    def _answer(
        self, peer: Peer, request: RemotingCommand, body: QueryAssignmentBody, others: Sequence[MessageQueue]
    ) -> list[Send]:
        mode = self.mode(body.topic, body.consumer_group)
        queues = self._share(body, mode, others)
        found = None
        if queues is not None:
            found = tuple(QueueAssignment(queue, mode.mode) for queue in dict.fromkeys(queues))
        return answer(peer, request, body=QueueAssignments(found).encode())

    def _share(
        self, body: QueryAssignmentBody, mode: RequestMode, others: Sequence[MessageQueue]
    ) -> list[MessageQueue] | None:
        """Return the queues of the client, possibly none. None: unknown topic, group or strategy."""
        queues = sorted([*self._own_queues(body.topic), *others])
        if not queues:
            return None
        if body.message_model == BROADCASTING or not self._config.server_load_balance:
            return queues
        group = self._clients.consumer_group(body.consumer_group)
        strategy = STRATEGIES.get(body.strategy_name)
        if group is None or strategy is None:
            return None
        client_ids = group.client_ids()
        if mode.mode == POP:
            return _share_pops(strategy, body.client_id, queues, client_ids, mode.pop_share_queue_num)
        return strategy(body.client_id, queues, client_ids) if body.client_id in client_ids else []

    def _own_queues(self, topic: str) -> list[MessageQueue]:
        config = self._topics.get(topic)
        if config is None or not config.perm & Perm.READ:
            return []
        return [MessageQueue(topic, self._config.broker_name, number) for number in range(config.read_queue_nums)]


def _share_pops(
    strategy: Strategy, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], share: int
) -> list[MessageQueue]:
    if share <= 0 or share >= len(client_ids) - 1:
        return [MessageQueue(queue.topic, queue.broker_name, ALL_QUEUES) for queue in queues]
    if client_id not in client_ids:
        return []
    place = client_ids.index(client_id)
    if len(client_ids) > len(queues):  # fewer queues than clients: queues are shared
        return [queues[place % len(queues)]]
    shared: list[MessageQueue] = []
    for step in range(share + 1):
        shared += strategy(client_ids[(place + step) % len(client_ids)], queues, client_ids)
    return shared
