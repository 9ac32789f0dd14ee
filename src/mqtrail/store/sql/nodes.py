"""The nodes of a store: several databases, each with whole queues and a log of its own.

The first one, the home, also has the system topics and the place of each queue. A queue is on one node for as long as
its topic exists, so no transaction reaches two databases: the home commits which node a new queue has before that node
commits its first row.

A node that does not answer does not stop other nodes. Records that wait for it are parked: the home commits them, so
their senders get their replies. When the node answers again, it commits them, and then they are removed from the home.
The end of its log shows which of them it had already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, and_, delete, select, update

from mqtrail.wire import (
    DLQ_PREFIX,
    INNER_TOPICS,
    RETRY_PREFIX,
    InvalidParameter,
    ServiceNotAvailable,
    decode_head,
    is_system_topic,
)

from ..errors import NodeClosed, StoreAway, StoreError
from .database import Apart, Database, NodeMember, cause
from .engines import parse
from .inserting import insert_rows
from .placing import QueueChange, read_starts, save_changes
from .queues import TableQueue, TableQueues, WaitingRecord
from .reading import TableReader
from .registry import register
from .replica import ReplicaDatabase, TableReplica
from .retention import Remover
from .schema import (
    ASSIGNMENT,
    HOME,
    HOME_NAME,
    NODE,
    PARKED,
    NodeKind,
    NodeState,
)
from .writing import RowWriter, TablesEnd

SICK_MS: Final = 15_000  # a node takes no new messages for so long after it was away
FAILURE_SUFFIX: Final = "_fail"  # of failure topics of pmq's interface
RESERVED_SIZE: Final = 1 << 30  # physical offsets that the home reserves at once
NOTED_MS: Final = 10_000  # between two notes of where queues of nodes end
NOTED_MAX: Final = 500  # queues of a note
Begin = Callable[[Callable[[], Any]], Callable[[], Any]]
"""Starts a function in a thread of its own, and returns what waits for its result. TimeoutError, of both: it takes too
long, or an earlier one still runs."""


@dataclass(frozen=True, slots=True)
class NodeDatabase:
    """A further database of a store. apart: see Database. begin: starts its commits; None: they run in their turn."""

    name: str
    url: str
    apart: Apart | None = None
    begin: Begin | None = None


def _at_once(act: Callable[[], Any]) -> Callable[[], Any]:
    """Run act in the caller's thread."""
    try:
        result = act()
    except Exception as error:
        failure = error

        def fail() -> None:
            raise failure

        return fail
    return lambda: result


@dataclass(slots=True, eq=False)
class TableNode:
    """One database of a store. host: of its server. parked_end: physical offset behind the last of its records that the
    home keeps; 0: there is none."""

    number: int
    name: str
    kind: NodeKind
    state: NodeState
    host: str
    database: Database
    queues: TableQueues
    begin: Begin = _at_once
    parked_end: int = 0
    noted_away: str | None = None
    first_offset: int = 0
    _sick_until_ms: int = 0
    writer: RowWriter = field(init=False)
    reader: TableReader = field(init=False)
    remover: Remover = field(init=False)

    def __post_init__(self) -> None:
        """Make what works on the database."""
        self.writer = RowWriter(self.database, self.queues)
        self.reader = TableReader(self.database, self.queues, self.writer.appended)
        self.remover = Remover(self.database, self.queues, self.reader)
        if not self.queues.is_loaded:
            self.writer.unready = (
                f"found that the node {self.name} has not answered since the start, so the ends of its queues are "
                "unknown: start its server"
            )

    @property
    def away(self) -> str | None:
        """Why it does not answer at present; None: it does."""
        return self.database.away or (None if self.queues.is_loaded else "its queues are not read yet")

    @property
    def durable_end(self) -> int:
        """Physical offset below which its records are committed, there or at the home."""
        return max(self.writer.flushed_offset, self.parked_end)

    def why_closed(self, now_ms: int) -> str | None:
        """Return why clients cannot send to its queues; None: they can."""
        if self.state is not NodeState.READ_WRITE:
            return f"found the node {self.name} {self.state}, expected {NodeState.READ_WRITE}: send to another queue"
        if self.number == HOME:
            return None  # without it nothing works
        if self.away is not None:
            self._sick_until_ms = max(self._sick_until_ms, now_ms + SICK_MS)
            return f"found that the node {self.name} does not answer ({self.away}): send to another queue"
        self._sick_until_ms = min(self._sick_until_ms, now_ms + SICK_MS)  # the clock may have been set back
        if now_ms < self._sick_until_ms:
            left_s = (self._sick_until_ms - now_ms) / 1000
            return f"found that the node {self.name} was away until now: send to another queue, or in {left_s:g} s"
        return None

    def refuse_read(self) -> None:
        """NodeClosed: an operator has closed the node. StoreAway: it has not answered since the start."""
        if self.state is NodeState.CLOSED and self.number != HOME:  # the broker itself reads the home
            raise NodeClosed(
                f"found the node {self.name} closed, expected it to be open: open it with "
                f"`mqtrail pmq node set {self.name} --state read-only`"
            )
        if not self.queues.is_loaded:
            raise StoreAway(f"node {self.name}: {self.away}")


class NodeGroup:
    """The nodes of one store. home: the first one. by_key: all queues."""

    def __init__(self, home_url: str, home: Database, others: Sequence[NodeDatabase], record_size_max: int) -> None:
        """Open all databases. StoreError: one of them cannot be used, or is missing. A node with queues may be away."""
        self.by_key: dict[tuple[str, int], TableQueue] = {}
        self.assigned: dict[tuple[str, int], int] = {}
        self.nodes: dict[int, TableNode] = {}
        self.now_ms = 0  # of the last append or question
        self._changes: list[QueueChange] = []  # that are not committed
        self._detached: list[tuple[QueueChange, TableNode, TableQueue]] = []  # tables that are released after them
        self._starts = read_starts(home)
        self.closed: dict[tuple[str, int], str] = {}  # queues that take no messages of clients, and why
        self._noted: dict[tuple[str, int], int] = {}  # where queues of nodes end, as the home knows
        self._note_due_ms = 0
        self._unloaded: list[Any] = []  # parked records of nodes that are away since the start
        self._record_size_max = record_size_max
        known = register(home, home_url, [(other.name, other.url) for other in others])
        if known:
            rows = home.rows(select(ASSIGNMENT))
            self.assigned = {(row.topic, row.queue_id): row.node for row in rows}
            self._noted = {(row.topic, row.queue_id): row.next_offset for row in rows}
        self._reserved = known[HOME].reserved_offset if known else 0
        self.home = self._make(HOME, HOME_NAME, known, home, home_url)
        try:
            for other in others:
                self._open(other, known)
            parked = home.rows(select(PARKED).order_by(PARKED.c.physical_offset)) if known else []
            self.log = TablesEnd(
                max(node.database.end_offset for node in self.nodes.values()),
                max(node.database.store_ms for node in self.nodes.values()),
            )
            if any(not node.queues.is_loaded for node in self.others):
                self.log.end_offset = max(self.log.end_offset, self._reserved)
            self._open_started()
            for row in parked:
                self._take_parked(row)
        except BaseException:
            for node in self.others:
                node.database.close()
            raise

    def _make(
        self,
        number: int,
        name: str,
        known: Mapping[int, Any],
        database: Database,
        url: str,
        begin: Begin | None = None,
    ) -> TableNode:
        def is_ours(topic: str, queue_id: int, next_offset: int) -> bool:
            key = topic, queue_id
            return number == self.assigned.get(key, HOME) and next_offset > self._starts.get(key, -1)

        queues = TableQueues(database, number, self.by_key, is_ours, lambda *key: self._starts.get(key, 0))
        row = known.get(number)
        kind, state = (NodeKind.NORMAL, NodeState.READ_WRITE) if row is None else _mode_of(row)
        host = parse(url).host or name
        node = self.nodes[number] = TableNode(number, name, kind, state, host, database, queues, begin or _at_once)
        return node

    def _open(self, other: NodeDatabase, known: Mapping[int, Any]) -> None:
        row = next(one for one in known.values() if one.name == other.name)
        member = NodeMember(other.name, row.store)
        queues = [key for key, number in self.assigned.items() if number == row.number]
        try:
            database = Database(other.url, self._record_size_max, other.apart, member, may_be_away=bool(queues))
        except StoreError as error:
            raise StoreError(f"node {other.name}: {error}") from error
        try:
            node = self._make(row.number, other.name, known, database, other.url, other.begin)
        except BaseException:
            database.close()
            raise
        for topic, queue_id in queues if not node.queues.is_loaded else ():
            node.queues.open(topic, queue_id).next_offset = self._noted[topic, queue_id]

    def _open_started(self) -> None:
        """Open the queues whose table was taken, and that have no other one yet."""
        for topic, queue_id in self._starts:
            node = self.nodes[self.assigned.get((topic, queue_id), HOME)]
            node.queues.open(topic, queue_id)

    def _load(self, node: TableNode) -> None:
        """Read the queues of a node that was away at the start, and answers now."""
        node.queues.load()
        node.writer.start()
        node.writer.unready = None
        self.log.store_ms = max(self.log.store_ms, node.database.store_ms)
        if node.database.end_offset > self.log.end_offset:
            node.writer.fault = (
                f"the log of the node {node.name} ends at {node.database.end_offset}, behind the "
                f"{self.log.end_offset} of its store: its database belongs to a later state of the store"
            )
        mine = [row for row in self._unloaded if row.node == node.number]
        self._unloaded = [row for row in self._unloaded if row.node != node.number]
        for row in mine:
            self._take_parked(row)

    def _take_parked(self, row: Any) -> None:
        """Have a node commit a record that the home has kept for it, unless it has it, or its topic was deleted."""
        node, record = self.nodes[row.node], bytes(row.record)
        head, end_offset = decode_head(record), row.physical_offset + len(record)
        node.parked_end = end_offset
        self.log.end_offset = max(self.log.end_offset, end_offset)
        self.log.store_ms = max(self.log.store_ms, head.store_timestamp_ms)
        if not node.queues.is_loaded:
            self._unloaded.append(row)
        elif end_offset > node.database.end_offset and self.assigned.get((head.topic, head.queue_id)) == node.number:
            queue = node.queues.open(head.topic, head.queue_id)
            assert head.queue_offset == queue.next_offset, "a node has all records before a parked one"
            node.writer.take([WaitingRecord(queue, record, row.tags_code, end_offset)])

    @property
    def others(self) -> list[TableNode]:
        """All nodes but the home."""
        return [node for node in self.nodes.values() if node.number != HOME]

    @property
    def fault(self) -> str | None:
        """Why nothing is accepted any more; None: it is."""
        return next((node.writer.fault for node in self.nodes.values() if node.writer.fault is not None), None)

    @property
    def flushed_offset(self) -> int:
        """Physical offset below which everything is committed."""
        if len(self.nodes) == 1:
            return self.home.writer.flushed_offset
        waiting = [node.durable_end for node in self.nodes.values() if node.durable_end < node.writer.end_offset]
        return min(waiting, default=self.log.end_offset)

    def read_from(self, replicas: Sequence[ReplicaDatabase]) -> None:
        """Read what replicas have from them. InvalidParameter: there is no such node."""
        by_name = {node.name: node for node in self.nodes.values()}
        for given in replicas:
            if given.name not in by_name:
                raise InvalidParameter(
                    f"found a replica of the node {given.name}, expected one of {', '.join(by_name)}: correct its name"
                )
            by_name[given.name].reader.replica = TableReplica(given, by_name[given.name].database)

    @property
    def has_changes(self) -> bool:
        """Whether the home has to note something."""
        return bool(self._changes)

    # Where queues are.

    def node_of(self, queue: TableQueue) -> TableNode:
        """Return the node of a queue."""
        return self.nodes[queue.node]

    def open(self, topic: str, queue_id: int) -> TableQueue:
        """Return the queue; a new one gets its node. MessageIllegal: its topic has no valid name."""
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            node = self._node_for(topic, queue_id)
            queue = node.queues.open(topic, queue_id)
            if node is not self.home and (topic, queue_id) not in self.assigned:
                self.assigned[topic, queue_id] = node.number
                self._changes.append(QueueChange(topic, queue_id, node.number))
        return queue

    def why_closed(self, topic: str, queue_id: int, now_ms: int) -> str | None:
        """Return why clients cannot send to a queue; None: they can."""
        self.now_ms = now_ms
        if (topic, queue_id) in self.closed:
            return self.closed[topic, queue_id]
        if kind_of(topic) is None:
            return None
        queue = self.by_key.get((topic, queue_id))
        node = self._node_for(topic, queue_id) if queue is None else self.nodes[queue.node]
        return node.why_closed(now_ms)

    def _node_for(self, topic: str, queue_id: int) -> TableNode:
        """Return the node that a queue has, or gets: the one whose host, and which itself, has the fewest queues of the
        topic; of those the one with the fewest queues."""
        if (topic, queue_id) in self.assigned:
            return self.nodes[self.assigned[topic, queue_id]]
        kind = kind_of(topic)
        if len(self.nodes) == 1 or kind is None:
            return self.home
        candidates = [
            node for node in self.nodes.values() if node.kind is kind and node.why_closed(self.now_ms) is None
        ]
        if not candidates:
            return self.home
        queues = list(self.by_key.values())
        of_topic = [self.nodes[queue.node] for queue in queues if queue.topic == topic]

        def load(node: TableNode) -> tuple[int, int, int, int]:
            return (
                sum(one.host == node.host for one in of_topic),
                of_topic.count(node),
                sum(queue.node == node.number for queue in queues),
                node.number,
            )

        return min(candidates, key=load)

    def release(self, topic: str) -> None:
        """Forget the topic's queues; the next flush records that in the databases."""
        for node in self.nodes.values():
            node.writer.release(topic)
        gone = [key for key in self.assigned if key[0] == topic]
        for key in gone:
            del self.assigned[key]
            self._noted.pop(key, None)
        started = [key for key in self._starts if key[0] == topic]
        for key in started:
            del self._starts[key]
        if gone or started:
            self._changes.append(QueueChange(topic, start_offset=0 if started else None))

    def release_table(self, topic: str, queue_id: int, end_offset: int, to: str | None) -> Callable[[], bool]:
        """Take its table from a queue that ends there, and let it go on without its messages, on another node if `to`
        names one; return what tells whether the databases have that. ServiceNotAvailable: not now."""
        queue = self.by_key[topic, queue_id]
        node = self.nodes[queue.node]
        node.writer.forget_committed()
        target = node if to is None else next(one for one in self.nodes.values() if one.name == to)
        if any(one.away is not None for one in (self.home, node, target)) or queue.waiting:
            raise ServiceNotAvailable("found commits that wait, or a node that is away, expected none: try again later")
        if queue.next_offset != end_offset:
            raise ServiceNotAvailable(
                f"found new messages in {topic}/{queue_id}, expected none after {end_offset}: try again later"
            )
        old = node.queues.detach(queue)
        queue.node = target.number
        change = QueueChange(topic, queue_id, target.number, end_offset)
        self._starts[topic, queue_id] = end_offset
        self.assigned.pop((topic, queue_id), None)
        self._noted.pop((topic, queue_id), None)
        if target is not self.home:
            self.assigned[topic, queue_id] = target.number
        self._changes.append(change)
        self._detached.append((change, node, old))

        def is_saved() -> bool:
            self._release_detached()
            return not any(one is change for one in self._changes)

        return is_saved

    def _release_detached(self) -> None:
        """Release tables once the home knows that their queues go on without them: only then they may be emptied."""
        for one in self._detached[:]:
            change, node, old = one
            if not any(waiting is change for waiting in self._changes):
                self._detached.remove(one)
                if old.number:
                    node.writer.release_table(old)

    # Commits.

    def begin_flush(self) -> Callable[[], int]:
        """Return a function for any thread: all nodes commit what is appended now; what a node cannot is parked."""
        home = self.home.writer.begin_commit()
        if len(self.nodes) == 1 and not self._changes:
            return home
        changes, ends = self._changes[:], self._ends_to_note()
        is_reserved = len(self.nodes) == 1 or self.log.end_offset <= self._reserved
        reserved = None if is_reserved else self.log.end_offset + RESERVED_SIZE
        commits = [
            (node, node.writer.begin_commit(), node.writer.appended()[:])
            for node in self.others
            if node.writer.waits_for_commit
        ]

        def flush() -> int:
            self._save_changes(changes, ends, reserved)
            waits = [(node, begun) for node, commit, _ in commits if (begun := _begun(node, commit)) is not None]
            try:
                home()
            finally:
                for node, wait in waits:
                    _wait(node, wait)
            for node, _, waiting in commits:
                if node.away is not None:
                    self._park(node, waiting)
            return self.flushed_offset

        return flush

    def _ends_to_note(self) -> dict[tuple[str, int], int]:
        """Return where queues of nodes end, now and then. A start without their node shows these ends."""
        if self._note_due_ms - NOTED_MS <= self.now_ms < self._note_due_ms:
            return {}
        self._note_due_ms = self.now_ms + NOTED_MS
        found = {}
        for key, number in self.assigned.items():
            queue = self.by_key.get(key) if self.nodes[number].queues.is_loaded else None
            if queue is not None and queue.next_offset != self._noted.get(key, 0):
                found[key] = queue.next_offset
                if len(found) == NOTED_MAX:
                    break
        return found

    def note_ends_now(self) -> None:
        """Have the next flush note where queues of nodes end."""
        self._note_due_ms = 0

    def _save_changes(
        self,
        changes: Sequence[QueueChange],
        ends: Mapping[tuple[str, int], int],
        reserved: int | None,
    ) -> None:
        """Note at the home where new queues are, before a node has a row of them, and where queues end. It may be
        repeated. reserved: physical offsets up to which nodes may have records from now on; None: as before."""
        if not (changes or ends or reserved):
            return
        self.home.database.revive()

        def saved() -> None:
            del self._changes[: len(changes)]
            self._noted.update(ends)
            self._reserved = reserved or self._reserved

        with self.home.database.transaction(saved) as connection:
            save_changes(connection, self.home.database, changes, has_nodes=len(self.nodes) > 1)
            for (topic, queue_id), end in ends.items():
                mine = and_(ASSIGNMENT.c.topic == topic, ASSIGNMENT.c.queue_id == queue_id)
                connection.execute(update(ASSIGNMENT).where(mine).values(next_offset=end))
            if reserved:
                connection.execute(update(NODE).where(NODE.c.number == HOME).values(reserved_offset=reserved))

    def _park(self, node: TableNode, waiting: Sequence[WaitingRecord]) -> None:
        """Commit at the home what waits for a node. It may be repeated."""
        rows = [
            {
                "physical_offset": one.physical_offset,
                "node": node.number,
                "tags_code": one.tags_code,
                "record": one.record,
            }
            for one in waiting
            if one.end_offset > node.durable_end
        ]
        if not rows:
            return

        def parked() -> None:
            node.parked_end = waiting[-1].end_offset

        self.home.database.revive()
        with self.home.database.transaction(parked) as connection:
            again = and_(PARKED.c.node == node.number, PARKED.c.physical_offset >= rows[0]["physical_offset"])
            connection.execute(delete(PARKED).where(again))
            insert_rows(connection, PARKED, rows)

    # Upkeep.

    def tend(self) -> None:
        """Connect to nodes that are away, remove what is parked no longer, take over what operators changed.

        StoreError: the home does not answer.
        """
        for node in self.nodes.values():
            if node.reader.replica is not None:
                node.reader.replica.look()
        self._release_detached()
        if len(self.nodes) == 1:
            return
        for node in self.others:
            if node.database.away is None and not node.queues.is_loaded:
                self._load(node)
            is_noted = not self._changes and self.log.end_offset <= self._reserved  # else the next flush comes first
            if node.away is not None and is_noted:
                with suppress(TimeoutError):  # the last attempt still runs
                    node.begin(node.writer.begin_commit())
            if (
                node.away is None
                and node.parked_end
                and node.writer.flushed_offset >= min(node.parked_end, node.writer.end_offset)
            ):
                self._unpark(node)
        for row in self.home.database.rows(select(NODE)):
            if row.number in self.nodes:
                node = self.nodes[row.number]
                node.kind, node.state = _mode_of(row)
                node.noted_away = row.away
        for node in self.others:
            if node.away != node.noted_away:
                self._note_away(node)

    def _unpark(self, node: TableNode) -> None:
        end = node.parked_end  # the flush thread may park more meanwhile
        gone = delete(PARKED).where(PARKED.c.node == node.number, PARKED.c.physical_offset < end)

        def act(connection: Connection) -> None:
            connection.execute(gone)

        self.home.database.change(act)
        if node.parked_end == end:
            node.parked_end = 0

    def _note_away(self, node: TableNode) -> None:
        noted = update(NODE).where(NODE.c.number == node.number).values(away=node.away)

        def act(connection: Connection) -> None:
            connection.execute(noted)

        self.home.database.change(act)

    def close(self) -> None:
        """Close all databases."""
        for node in self.nodes.values():
            if node.reader.replica is not None:
                node.reader.replica.close()
            node.database.close()


def _begun(node: TableNode, commit: Callable[[], int]) -> Callable[[], Any] | None:
    """Start a node's commit; return what waits for it. None: the node is away."""
    if node.away is not None:
        return None
    try:
        return node.begin(commit)
    except TimeoutError as error:
        node.database.away = cause(error)
        return None


def _wait(node: TableNode, wait: Callable[[], Any]) -> None:
    try:
        wait()
    except TimeoutError as error:
        node.database.away = cause(error)
    except StoreAway:
        pass


def _mode_of(row: Any) -> tuple[NodeKind, NodeState]:
    return NodeKind(row.kind), NodeState(row.state)


def kind_of(topic: str) -> NodeKind | None:
    """Return the kind of nodes for a topic; None: it belongs to the home."""
    if is_system_topic(topic) or topic in INNER_TOPICS:
        return None
    is_failure = topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or topic.endswith(FAILURE_SUFFIX)
    return NodeKind.FAILURE if is_failure else NodeKind.NORMAL
