"""A store on several databases: where queues are, and what happens while a node is away."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.exc import OperationalError

from mqtrail.store import NodeClosed, RealDisk, StoreAway, StoreError
from mqtrail.store.sql import NodeDatabase, NodeFacts, SqlStore, look_at, parse_node, set_node
from mqtrail.store.sql.database import Database
from mqtrail.store.sql.nodes import SICK_MS, TableNode
from mqtrail.wire import RETRY_PREFIX, InvalidParameter, ServiceNotAvailable, dlq_topic

from .kinds import CONFIG, sqlite_url
from .test_contract import NOW_MS, bodies, record

EVERYTHING = 1 << 20


def opened(folder: Path, *names: str) -> SqlStore:
    nodes = [NodeDatabase(name, node_url(folder, name)) for name in names]
    return SqlStore(RealDisk(folder), sqlite_url(folder), CONFIG, nodes=nodes)


def node_url(folder: Path, name: str) -> str:
    return f"sqlite:///{folder / name}.db"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with closing(opened(tmp_path, "n1", "n2")) as made:
        yield made


def send(store: SqlStore, body: bytes, queue_id: int, topic: str = "orders") -> None:
    store.append([record(body, queue_id=queue_id, topic=topic, UNIQ_KEY=body.decode())], NOW_MS)


def place_of(store: SqlStore, topic: str, queue_id: int) -> str:
    return store._nodes.node_of(store._queues[topic, queue_id]).name


def places(store: SqlStore, topic: str = "orders") -> dict[int, str]:
    return {queue_id: place_of(store, topic, queue_id) for queue_id in store.queue_ids(topic)}


def read(store: SqlStore, queue_id: int, topic: str = "orders") -> list[bytes]:
    return bodies(store.read(topic, queue_id, 0, 99, EVERYTHING).records)


def rows(folder: Path, name: str, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(folder / f"{name}.db")) as connection:
        return connection.execute(statement).fetchall()


def node(store: SqlStore, name: str) -> TableNode:
    return next(one for one in store._nodes.nodes.values() if one.name == name)


class Outage:
    """While it lasts, the database of a node answers nothing, as a server that is down."""

    def __init__(self, store: SqlStore, name: str) -> None:
        self.database = node(store, name).database
        self.database._is_server = True
        self.begin()

    def begin(self) -> None:
        for engine in (self.database._engine, self.database._reads_engine):
            event.listen(engine, "before_cursor_execute", refuse)

    def end(self) -> None:
        for engine in (self.database._engine, self.database._reads_engine):
            event.remove(engine, "before_cursor_execute", refuse)


def refuse(connection: Connection, cursor: object, statement: str, *others: object) -> None:
    raise OperationalError(statement, None, Exception("the server is gone"))


def test_queues_are_spread_over_the_nodes_and_stay_there(tmp_path: Path) -> None:
    """The node with the fewest queues of the topic gets the next one, also after a restart; reads find each."""
    with closing(opened(tmp_path, "n1", "n2")) as store:
        for queue_id in range(6):
            send(store, b"%d" % queue_id, queue_id)
        store.flush()
        before = places(store)
        assert Counter(before.values()) == {"home": 2, "n1": 2, "n2": 2}
    tables = "SELECT topic, queue_id FROM mqtrail_queue WHERE state = 'used' ORDER BY queue_id"
    for name, file in (("home", "messages"), ("n1", "n1"), ("n2", "n2")):
        expected = [("orders", queue_id) for queue_id, place in before.items() if place == name]
        assert rows(tmp_path, file, tables) == expected
    with closing(opened(tmp_path, "n1", "n2")) as store:
        for queue_id in range(7):
            send(store, b"again", queue_id)
        assert {queue_id: place for queue_id, place in places(store).items() if queue_id < 6} == before
        store.flush()
        assert [read(store, queue_id) for queue_id in range(7)] == [
            *([b"%d" % queue_id, b"again"] for queue_id in range(6)),
            [b"again"],
        ]
        found = store.query("orders", "again", 64, 0, 1 << 62).records
        assert len(found) == 7
        offsets = [store.entries("orders", queue_id, 0, 1)[0][0] for queue_id in range(6)]
        assert [bodies([store.read_at(offset)])[0] for offset in offsets] == [b"%d" % one for one in range(6)]


def test_a_topic_expands_onto_a_new_node(tmp_path: Path) -> None:
    """Queues of a store on one database stay; those that a topic gets later go to the node that has none of it."""
    with closing(opened(tmp_path)) as store:
        for queue_id in range(4):
            send(store, b"old", queue_id)
    with closing(opened(tmp_path, "n1")) as store:
        for queue_id in range(4, 8):
            send(store, b"new", queue_id)
        store.flush()
        assert places(store) == {**dict.fromkeys(range(4), "home"), **dict.fromkeys(range(4, 8), "n1")}
        assert read(store, 0) == [b"old"]


def test_system_topics_stay_at_home_and_failures_go_to_their_nodes(tmp_path: Path) -> None:
    """A failure node gets retries, dead letters and failure topics of pmq's interface, and nothing else."""
    with closing(opened(tmp_path, "n1", "bad")) as store:
        store.flush()
        set_node(sqlite_url(tmp_path), "bad", kind="failure")
        store.write_queues()
        for topic in ("orders", f"{RETRY_PREFIX}stock", dlq_topic("stock"), "stock_orders_fail", "SCHEDULE_TOPIC_XXXX"):
            for queue_id in range(2):
                send(store, b"x", queue_id, topic)
        assert {topic: set(places(store, topic).values()) for topic in store.topics()} == {
            "orders": {"home", "n1"},
            f"{RETRY_PREFIX}stock": {"bad"},
            dlq_topic("stock"): {"bad"},
            "stock_orders_fail": {"bad"},
            "SCHEDULE_TOPIC_XXXX": {"home"},
        }


def test_states_of_nodes(tmp_path: Path, store: SqlStore) -> None:
    """A read-only node takes no sends of clients and no new queues; a closed one cannot be read either. What the broker
    moves is stored all the same."""
    for queue_id in range(3):
        send(store, b"x", queue_id)
    store.flush()
    queue_id = {place: number for number, place in places(store).items()}["n1"]
    home = sqlite_url(tmp_path)
    set_node(home, "n1", state="read-only")
    store.write_queues()
    assert "found the node n1 read-only" in (store.why_closed("orders", queue_id, NOW_MS) or "")
    assert [store.why_closed("orders", other, NOW_MS) for other in range(3) if other != queue_id] == [None, None]
    assert read(store, queue_id) == [b"x"]
    for later in range(3, 9):
        send(store, b"y", later)
    assert "n1" not in {place for number, place in places(store).items() if number > 2}
    set_node(home, "n1", state="closed")
    store.write_queues()
    with pytest.raises(NodeClosed, match="pmq node set n1"):
        read(store, queue_id)
    send(store, b"moved", queue_id)
    store.flush()
    set_node(home, "n1", state="read-write")
    store.write_queues()
    assert store.why_closed("orders", queue_id, NOW_MS) is None
    assert read(store, queue_id) == [b"x", b"moved"]


def test_a_node_stays_open_while_a_topic_has_no_other_queue(tmp_path: Path, store: SqlStore) -> None:
    """Closing it is refused unless forced; unknown nodes and databases without nodes are refused."""
    for queue_id in range(2):
        send(store, b"x", queue_id)
    store.flush()
    home = sqlite_url(tmp_path)
    assert set(places(store).values()) == {"home", "n1"}
    set_node(home, "home", state="read-only")
    with pytest.raises(InvalidParameter, match=r"found 1 topics with all queues on n1 .*\(orders\)"):
        set_node(home, "n1", state="read-only")
    assert set_node(home, "n1", state="read-only", force=True).state == "read-only"
    with pytest.raises(InvalidParameter, match="found the home to be closed, expected read-only"):
        set_node(home, "home", state="closed", force=True)
    store.write_queues()
    assert "found the node home read-only" in (store.why_closed("orders", 0, NOW_MS) or "")
    assert store.why_closed("SCHEDULE_TOPIC_XXXX", 0, NOW_MS) is None
    with pytest.raises(StoreError, match=r"found no node n9 .*home, n1, n2"):
        set_node(home, "n9", state="closed")
    with pytest.raises(StoreError, match="found no node n1"):
        set_node(node_url(tmp_path, "n1"), "n1", state="closed")
    with pytest.raises(StoreError, match="cannot be changed"):
        set_node(f"sqlite:///{tmp_path}/none.db", "n1", state="closed")
    assert not (tmp_path / "none.db").exists()


def test_a_node_that_is_away_stops_no_other(tmp_path: Path, store: SqlStore) -> None:
    """What waits for it is kept at home, so everything is acknowledged; it takes nothing new. When it is back it has
    each record once, in order, and takes messages after its time-out."""
    for queue_id in range(3):
        send(store, b"%d" % queue_id, queue_id)
    store.flush()
    sick = {place: number for number, place in places(store).items()}["n1"]
    others = [number for number in range(3) if number != sick]
    outage = Outage(store, "n1")
    for queue_id in range(3):
        send(store, b"later", queue_id)
    assert store.flush() == store.end_offset, "the home keeps what n1 cannot take"
    assert (store.away, store.fault) == (None, None)
    assert rows(tmp_path, "messages", "SELECT count(*) FROM mqtrail_parked") == [(1,)]
    assert "n1 does not answer" in (store.why_closed("orders", sick, NOW_MS) or "")
    for queue_id in others:
        assert read(store, queue_id) == [b"%d" % queue_id, b"later"]
        assert store.why_closed("orders", queue_id, NOW_MS) is None
    with pytest.raises(StoreAway):
        read(store, sick)
    with pytest.raises(StoreAway):
        store.query("orders", "later", 9, 0, 1 << 62)
    assert store.store_time("orders", sick, 0) == -1
    send(store, b"new", 3)
    assert place_of(store, "orders", 3) != "n1"
    send(store, b"moved", sick)  # by the broker itself
    assert store.flush() == store.end_offset
    store.write_queues()
    found = {one.name: one for one in look_at(sqlite_url(tmp_path)).nodes}
    assert (found["n1"].away, found["n1"].parked, found["n2"].away) == ("the server is gone", 2, None)
    outage.end()
    store.write_queues()
    assert read(store, sick) == [b"%d" % sick, b"later", b"moved"]
    store.write_queues()
    assert rows(tmp_path, "messages", "SELECT count(*) FROM mqtrail_parked") == [(0,)]
    assert rows(tmp_path, "n1", "SELECT id FROM message_0001 ORDER BY id") == [(0,), (1,), (2,)]
    assert "away until now" in (store.why_closed("orders", sick, NOW_MS + 1) or "")
    assert store.why_closed("orders", sick, NOW_MS - 10 * SICK_MS) is not None, "the clock was set back"
    assert store.why_closed("orders", sick, NOW_MS - 9 * SICK_MS) is None
    assert store.why_closed("orders", sick, NOW_MS + 2 * SICK_MS) is None
    assert {one.name: one.away for one in look_at(sqlite_url(tmp_path)).nodes} == dict.fromkeys(("home", "n1", "n2"))


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("crashes", [True, False])
def test_a_connection_lost_in_a_commit_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: bool, crashes: bool
) -> None:
    """Whether the node had committed or not, also after a crash of the broker: each record is there once."""
    store = opened(tmp_path, "n1")
    for queue_id in range(2):
        send(store, b"first", queue_id)
    store.flush()
    queue_id = {place: number for number, place in places(store).items()}["n1"]
    database = node(store, "n1").database
    database._is_server = True
    dialect = database._engine.dialect
    plain = dialect.do_commit

    def lose(connection: Any) -> None:
        if commits:
            plain(connection)
        else:
            dialect.do_rollback(connection)
        raise OperationalError("COMMIT", None, Exception("the connection broke"))

    monkeypatch.setattr(dialect, "do_commit", lose)
    send(store, b"second", queue_id)
    assert store.flush() == store.end_offset
    assert database.away == "the connection broke"
    monkeypatch.setattr(dialect, "do_commit", plain)
    count = "SELECT count(*) FROM message_0001"
    assert rows(tmp_path, "n1", count) == [(2 if commits else 1,)]
    if crashes:
        end = store.end_offset
        store.abandon()
        store = opened(tmp_path, "n1")
        assert store.end_offset == end
    with closing(store):
        store.write_queues()
        store.flush()
        assert read(store, queue_id) == [b"first", b"second"]
        send(store, b"third", queue_id)
        store.flush()
        store.write_queues()
        assert read(store, queue_id) == [b"first", b"second", b"third"]
        assert rows(tmp_path, "messages", "SELECT count(*) FROM mqtrail_parked") == [(0,)]
    assert rows(tmp_path, "n1", count) == [(3,)]


def test_a_topic_that_is_deleted_while_its_node_is_away(tmp_path: Path) -> None:
    """It does not come back with the node, not even after a crash; its new queue is elsewhere."""
    store = opened(tmp_path, "n1")
    for queue_id in range(2):
        send(store, b"old", queue_id)
    store.flush()
    gone = {place: number for number, place in places(store).items()}["n1"]
    Outage(store, "n1")
    send(store, b"parked", gone)
    store.flush()
    store.delete_topic("orders")
    store.flush()
    store.abandon()
    with closing(opened(tmp_path, "n1")) as store:
        assert store.topics() == []
        store.write_queues()
        assert rows(tmp_path, "n1", "SELECT count(*) FROM message_0001") == [(0,)]
        for queue_id in range(2):
            send(store, b"new", queue_id)
        store.flush()
        assert [read(store, queue_id) for queue_id in range(2)] == [[b"new"], [b"new"]]


def test_a_node_commits_no_row_of_a_queue_that_the_home_does_not_know(tmp_path: Path) -> None:
    """Also not when it comes back before the flush: a crash would take the queue for that of a deleted topic."""
    with closing(opened(tmp_path, "n1")) as store:
        for queue_id in range(2):
            send(store, b"x", queue_id)
            if queue_id == 0:
                store.flush()
        node(store, "n1").database.away = "it was away for a moment"
        store.write_queues()
        used = "SELECT count(*) FROM mqtrail_queue WHERE state = 'used'"
        assert rows(tmp_path, "n1", used) == [(0,)]
        assert store.flushed_offset < store.end_offset
        assert store.flush() == store.end_offset
        assert rows(tmp_path, "messages", "SELECT count(*) FROM mqtrail_assignment") == [(1,)]
        store.write_queues()
        assert rows(tmp_path, "n1", used) == [(1,)]


class Hidden:
    """The database of a node cannot be opened while it is hidden, as of a server that is down."""

    def __init__(self, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = folder / f"{name}.db"
        self.away = folder / f"{name}.away"
        monkeypatch.setattr(Database, "_may_be_away", lambda self, error: isinstance(error, OperationalError))
        self.file.rename(self.away)
        self.file.mkdir()

    def show(self) -> None:
        self.file.rmdir()
        self.away.rename(self.file)


@pytest.mark.parametrize("has_parked", [True, False])
def test_a_start_without_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_parked: bool) -> None:
    """The other queues serve at once. Its own are there, with the ends as last noted, and can be read and written when
    it is back; no physical offset is given twice."""
    with closing(opened(tmp_path, "n1")) as store:
        for queue_id in range(2):
            send(store, b"first", queue_id)
        store.flush()
        sick = {place: number for number, place in places(store).items()}["n1"]
        for number in range(100):
            send(store, b"%d" % number, sick)
        store.flush()
        end = store.end_offset
    if has_parked:
        store = opened(tmp_path, "n1")
        Outage(store, "n1")
        send(store, b"parked", sick)
        store.flush()
        end = store.end_offset
        store.abandon()
    hidden = Hidden(tmp_path, "n1", monkeypatch)
    with closing(opened(tmp_path, "n1")) as store:
        assert store.end_offset > end
        assert list(store.away_nodes) == ["n1"]
        assert "n1" in (store.why_closed("orders", sick, NOW_MS) or "")
        assert (store.max_offset("orders", sick) > 0, store.is_end_known("orders", sick)) == (True, False)
        assert (read(store, 1 - sick), store.is_end_known("orders", 1 - sick)) == ([b"first"], True)
        for act in (
            lambda: read(store, sick),
            lambda: store.query("orders", "first", 9, 0, 1 << 62),
            lambda: store.read_at(store.end_offset),
        ):
            with pytest.raises(StoreAway):
                act()
        with pytest.raises(ServiceNotAvailable, match="has not answered since the start"):
            send(store, b"moved", sick)
        send(store, b"second", 1 - sick)
        send(store, b"elsewhere", 5)
        assert store.flush() == store.end_offset
        assert place_of(store, "orders", 5) == "home"
        hidden.show()
        store.write_queues()  # it connects
        store.write_queues()  # it reads the queues
        assert store.is_end_known("orders", sick)
        expected = [b"first", *(b"%d" % number for number in range(100)), *([b"parked"] if has_parked else [])]
        assert store.max_offset("orders", sick) == len(expected)
        send(store, b"last", sick)
        assert store.flush() == store.end_offset
        found: list[bytes] = []
        while len(found) < len(expected) + 1:
            found += bodies(store.read("orders", sick, len(found), 999, EVERYTHING).records)
        assert found == [*expected, b"last"]
        assert store.away_nodes == {}
        store.write_queues()
        assert rows(tmp_path, "messages", "SELECT count(*) FROM mqtrail_parked") == [(0,)]


def test_a_topic_that_is_deleted_before_its_node_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was away since the start: its rows of the topic are removed when it answers."""
    with closing(opened(tmp_path, "n1")) as store:
        for queue_id in range(2):
            send(store, b"x", queue_id)
        store.flush()
    hidden = Hidden(tmp_path, "n1", monkeypatch)
    with closing(opened(tmp_path, "n1")) as store:
        store.delete_topic("orders")
        store.flush()
        hidden.show()
        for _ in range(3):
            store.write_queues()
        assert (store.away_nodes, store.topics()) == ({}, [])
    assert rows(tmp_path, "n1", "SELECT count(*) FROM message_0001") == [(0,)]


def test_a_new_node_must_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without queues that cannot be opened is refused: its URL may be wrong."""
    with closing(opened(tmp_path, "n1")):
        pass
    Hidden(tmp_path, "n1", monkeypatch)
    with pytest.raises(StoreError, match="node n1: found that the database cannot be opened"):
        opened(tmp_path, "n1")


def test_nodes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """A missing node with queues, another store's node, a store as a node, a node as a home, a name twice."""
    folder, other = tmp_path / "a", tmp_path / "b"
    for one in (folder, other):
        one.mkdir()
        with closing(opened(one, "n1", "n2")) as store:
            for queue_id in range(2):
                send(store, b"x", queue_id)
            store.flush()
    with pytest.raises(StoreError, match=r"found no --node n1, which has 1 queues and 0 parked .*--node n1=URL"):
        opened(folder, "n2")

    def with_node(name: str, url: str) -> SqlStore:
        nodes = [NodeDatabase("n1", node_url(folder, "n1")), NodeDatabase(name, url)]
        return SqlStore(RealDisk(folder), sqlite_url(folder), CONFIG, nodes=nodes)

    for name, url, found in (
        ("n2", node_url(other, "n2"), "node n2: found the node n2 of "),
        ("n2", node_url(folder, "n1"), "node n2: found the node n1 of "),
        ("n3", sqlite_url(other), "node n3: found messages of a store of its own"),
        ("n3", sqlite_url(folder), "node n3: found messages of a store of its own"),
        ("n3", f"sqlite:///{tmp_path}/missing/x.db", "node n3: found that the database cannot be opened"),
    ):
        with pytest.raises(StoreError, match=found):
            with_node(name, url)
    with pytest.raises(InvalidParameter, match="expected each name once"):
        with_node("n1", node_url(folder, "n1"))
    with pytest.raises(StoreError, match="found the node n1 of another store, expected a home"):
        SqlStore(RealDisk(tmp_path / "c"), node_url(folder, "n1"), CONFIG)
    with closing(opened(folder, "n1")) as store:
        assert {one.name for one in look_at(sqlite_url(folder)).nodes} == {"home", "n1"}, "n2 had no queues"
        assert read(store, 0) == [b"x"]


@pytest.mark.parametrize(
    "given", ["n1", "=sqlite:///x.db", "home=sqlite:///x.db", "n 1=sqlite:///x", "n1=oracle://h/d"]
)
def test_unusable_nodes_are_refused(given: str) -> None:
    """Each with what is expected."""
    with pytest.raises(InvalidParameter, match="expected"):
        parse_node(given)
    assert parse_node("n1=sqlite:///x.db?a=b"[:17]) == ("n1", "sqlite:///x.db")


def test_messages_expire_on_all_nodes(tmp_path: Path, store: SqlStore) -> None:
    """A node that is away keeps its messages until it is back."""
    for queue_id in range(3):
        send(store, b"old", queue_id)
    store.flush()
    later = NOW_MS + CONFIG.retention_ms + 5_000
    outage = Outage(store, "n1")
    assert store.expire(later, at_any_hour=True) > 0
    sick = {place: number for number, place in places(store).items()}["n1"]
    assert [store.min_offset("orders", number) for number in range(3)] == [int(number != sick) for number in range(3)]
    outage.end()
    store.write_queues()
    store.expire(later, at_any_hour=True)
    assert store.min_offset("orders", sick) == 1


def test_facts_show_the_nodes(tmp_path: Path, store: SqlStore) -> None:
    """Name, kind, state, queues; a database alone has none."""
    for queue_id in range(3):
        send(store, b"x", queue_id)
    store.flush()
    found = look_at(sqlite_url(tmp_path)).nodes
    assert found[1] == NodeFacts(
        name="n1", kind="normal", state="read-write", away=None, queues=1, parked=0, url=node_url(tmp_path, "n1")
    )
    assert [(one.name, one.queues) for one in found] == [("home", 1), ("n1", 1), ("n2", 1)]
    assert look_at(node_url(tmp_path, "n1")).nodes == ()
