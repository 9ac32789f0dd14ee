"""Reading from a replica that lags, and going on with it after a fail-over: real replication of each kind of server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from mqtrail.store import MemoryDisk, NodeFetch, StoreAway
from mqtrail.store.sql import NodeDatabase, ReplicaDatabase, SqlStore
from mqtrail.store.sql.queues import TABLES_A_STEP
from mqtrail.wire import tags_code
from tests.store.kinds import CONFIG
from tests.store.test_contract import NOW_MS, bodies, record
from tests.waiting import wait_until

from .replicas import PAIRS, Replicated
from .test_door import MESSAGES, DoorProcess
from .test_servers import flush_until_back

pytestmark = pytest.mark.databases

EVERYTHING = 1 << 20
UNTIL_S = 60.0


@pytest.fixture(scope="module", params=sorted(PAIRS))
def pair(request: pytest.FixtureRequest) -> Iterator[Replicated]:
    """A primary and a replica, for tests that leave them as they are."""
    with PAIRS[request.param].running() as running:
        yield running


@pytest.fixture(params=sorted(PAIRS))
def own_pair(request: pytest.FixtureRequest) -> Iterator[Replicated]:
    """A primary and a replica of one test."""
    with PAIRS[request.param].running() as running:
        yield running


def _at_once(act: Callable[[], Any]) -> Any:
    return act()


class Reading:
    """A store that reads old rows from a replica. node: whose; the queue is orders/0."""

    def __init__(self, url: str, replica: str, nodes: Sequence[NodeDatabase] = (), node: str = "home") -> None:
        replicas = [ReplicaDatabase(node, replica, "replica", _at_once)]
        self.store = SqlStore(MemoryDisk(), url, CONFIG, _at_once, nodes, replicas)
        self.number = 0

    def send(self, count: int, queue_id: int = 0) -> None:
        """Append and commit messages: every third has the tag B."""
        for _ in range(count):
            tag = "A" if self.number % 3 else "B"
            self.store.append([record(b"%d" % self.number, queue_id=queue_id, tag=tag)], NOW_MS)
            self.number += 1
        self.store.flush()

    def known(self, queue_id: int = 0) -> int:
        """Look at the replica, as the broker does each second; return how far it has the queue."""
        self.store.write_queues()
        queue = self.store._queues["orders", queue_id]
        replica = self.store._nodes.node_of(queue).reader.replica
        assert replica is not None
        return replica.end_of(queue)

    def wait_for(self, end: int, queue_id: int = 0) -> None:
        wait_until(lambda: self.known(queue_id) == end, UNTIL_S)

    def walk(self, tags: frozenset[int] | None = None, queue_id: int = 0) -> tuple[list[bytes], int]:
        """Read all messages as a consumer does; return them, and how many reads the replica served."""
        found: list[bytes] = []
        place = served = 0
        while place < self.store.max_offset("orders", queue_id):
            fetch = self.store.begin_fetch("orders", queue_id, place, 7, tags)
            if fetch is not None:
                try:
                    fetch()
                    served += isinstance(fetch, NodeFetch) and fetch.node == "replica"
                except StoreAway:
                    pass  # as in the broker: the read asks the primary then
            result = self.store.read("orders", queue_id, place, 7, EVERYTHING, tags)
            found += bodies(result.records)
            assert result.next_queue_offset > place
            place = result.next_queue_offset
        return found, served


@pytest.fixture
def reading(pair: Replicated) -> Iterator[Reading]:
    url, replica, _ = pair.urls()
    made = Reading(url, replica)
    yield made
    pair.resume()
    made.store.abandon()


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_old_messages_are_read_from_the_replica(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    """The primary is not asked for them."""
    reading.send(30)
    reading.wait_for(30)
    monkeypatch.setattr(reading.store._database, "rows", None)
    monkeypatch.setattr(reading.store._database, "rows_apart", None)
    assert reading.walk() == (numbers(30), 5)


@pytest.mark.parametrize("tags", [None, frozenset({tags_code("B")})])
def test_a_reader_passes_no_message_that_the_replica_lacks(
    pair: Replicated, reading: Reading, tags: frozenset[int] | None
) -> None:
    """What it does not have yet comes from the primary: each message once, in order, also with a filter."""
    reading.send(30)
    reading.wait_for(30)
    pair.pause()
    reading.send(20)
    assert reading.known() == 30, "it lags"
    found, served = reading.walk(tags)
    assert found == [b"%d" % number for number in range(50) if tags is None or number % 3 == 0]
    assert served > 0
    pair.resume()
    reading.wait_for(50)
    assert reading.walk(tags)[0] == found


def test_a_table_that_was_another_topics_is_not_mistaken(pair: Replicated, reading: Reading) -> None:
    """While the replica has the rows of a deleted topic in the table, the rows of the new one come from the primary."""
    reading.send(30)
    reading.wait_for(30)
    pair.pause()
    reading.store.delete_topic("orders")
    reading.store.flush()
    reading.store.write_queues()
    for queue_id in [*range(1, TABLES_A_STEP), *[0] * 20]:  # the table is the last of the free ones
        reading.send(1, queue_id)
    assert reading.store._queues["orders", 0].number == 1
    expected = [b"%d" % number for number in range(reading.number - 20, reading.number)]
    assert reading.known() == 0
    assert reading.walk() == (expected, 0)
    pair.resume()
    reading.wait_for(20)
    found, served = reading.walk()
    assert (found, served > 0) == (expected, True)


def test_a_replica_without_the_present_start_is_not_read(pair: Replicated, reading: Reading) -> None:
    """The last process may have reused a table meanwhile, which the replica does not know."""
    reading.send(5)
    reading.wait_for(5)
    pair.pause()
    reading.store.close()
    (name, url, replica) = ("home", *_urls_of(reading))
    again = Reading(url, replica, node=name)
    try:
        assert again.known() == 0
        assert "present start" in again.store.away_replicas["home"]
        assert again.walk() == (numbers(5), 0)
        pair.resume()
        again.wait_for(5)
        assert again.store.away_replicas == {}
        assert again.walk() == (numbers(5), 1)
    finally:
        again.store.abandon()


def _urls_of(reading: Reading) -> tuple[str, str]:
    store = reading.store
    replica = store._nodes.home.reader.replica
    assert replica is not None
    urls = store._database._url, replica._engine.url.set(drivername=store._database._url.drivername)
    primary, copy = (url.render_as_string(hide_password=False) for url in urls)
    return primary, copy


@pytest.mark.parametrize("ends", ["kill", "pause"])
def test_a_replica_that_is_away_stops_no_read(
    pair: Replicated, reading: Reading, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that it does not answer is done by the primary, and it is read again when it is back."""
    monkeypatch.setattr("mqtrail.store.sql.replica.SILENCE_S", 0.5)
    url, replica = _urls_of(reading)
    reading.store.close()
    reading = Reading(url, replica)
    reading.send(30)
    reading.wait_for(30)
    getattr(pair.replica, ends)()
    try:
        assert reading.walk() == (numbers(30), 0)
        assert list(reading.store.away_replicas) == ["home"]
        assert reading.known() == 0
        reading.send(5)
        assert reading.walk() == (numbers(35), 0)
    finally:
        (pair.replica.resume if ends == "pause" else pair.replica.start)()
    reading.wait_for(35)
    assert reading.store.away_replicas == {}
    assert reading.walk() == (numbers(35), 5)
    reading.store.abandon()


def test_a_node_that_is_away_is_read_from_its_replica(tmp_path: Path, own_pair: Replicated) -> None:
    """What the replica has of its queues can be read meanwhile."""
    url, replica, _ = own_pair.urls()
    reading = Reading(f"sqlite:///{tmp_path}/home.db", replica, [NodeDatabase("n1", url, _at_once)], node="n1")
    try:
        reading.send(10)
        reading.send(10, queue_id=1)
        (queue_id,) = (number for (_, number), queue in reading.store._queues.items() if queue.node)
        reading.wait_for(10, queue_id)
        own_pair.primary.kill()
        reading.send(1, queue_id)  # the home keeps it
        assert reading.store.away_nodes
        fetch = reading.store.begin_fetch("orders", queue_id, 0, 32)
        assert isinstance(fetch, NodeFetch)
        fetch()
        assert len(reading.store.read("orders", queue_id, 0, 32, EVERYTHING).records) == 10
        assert reading.store.begin_fetch("orders", queue_id, 10, 32) is None, "the replica lacks it"
    finally:
        reading.store.abandon()


def test_a_replica_that_lacks_commits_is_not_taken_for_the_primary(own_pair: Replicated) -> None:
    """The store waits for a server that has all it acknowledged; the old primary is one."""
    _, _, both = own_pair.urls()
    store = SqlStore(MemoryDisk(), both, CONFIG)
    try:
        store.append([record(b"0")], NOW_MS)
        store.flush()
        own_pair.cut()
        store.append([record(b"1")], NOW_MS)
        store.flush()
        own_pair.primary.kill()
        own_pair.promote()
        store.append([record(b"2")], NOW_MS)
        for _ in range(3):  # the first one finds that the primary is gone
            with pytest.raises(StoreAway):
                store.begin_flush()()
        assert "it lacks commits" in (store.away or "")
        with pytest.raises(StoreAway):
            store.read("orders", 0, 0, 9, EVERYTHING)
        assert store.fault is None
        own_pair.primary.start()
        flush_until_back(store)
        assert bodies(store.read("orders", 0, 0, 9, EVERYTHING).records) == [b"0", b"1", b"2"]
    finally:
        store.abandon()


def test_a_server_that_becomes_read_only_is_left_for_the_new_primary(own_pair: Replicated) -> None:
    """Its connections stay open, so nothing but the refusal of a change shows the fail-over."""
    url, _, both = own_pair.urls()
    store = SqlStore(MemoryDisk(), own_pair.of_application(both), CONFIG)
    try:
        store.append([record(b"0")], NOW_MS)
        store.flush()
        own_pair.demote(url)
        own_pair.promote()
        store.append([record(b"1")], NOW_MS)
        flush_until_back(store)
        assert store.fault is None
        assert bodies(store.read("orders", 0, 0, 9, EVERYTHING).records) == [b"0", b"1"]
    finally:
        store.abandon()


def test_a_door_goes_on_with_the_replica_after_a_fail_over(own_pair: Replicated, tmp_path: Path) -> None:
    """Nothing acknowledged is lost, nothing is there twice; what was under way is uncertain for its sender only."""
    _, replica, both = own_pair.urls()
    own_pair.synchronous()
    with DoorProcess(tmp_path, both, replicas=f"home={replica}") as door:
        load = Load(str(door.http.base_url))
        load.wait_for(40)
        own_pair.primary.kill()
        wait_until(lambda: load.refused > 0, UNTIL_S)
        own_pair.promote()
        load.wait_for(len(load.acknowledged) + 40)
        load.stop()
        found = [message["body"] for message in door.receive("stock", len(load.acknowledged))]
        deadline_s = time.monotonic() + UNTIL_S
        while not load.acknowledged <= set(found):
            assert time.monotonic() < deadline_s
            found += [message["body"] for message in door.receive("stock", 1)]
        assert len(found) == len(set(found)), "each publish is there once"
        assert set(found) <= load.tried
        assert door.end()[0] == 0


class Load:
    """Publishers in threads. acknowledged: bodies that were; tried: all of them; refused: how many were not taken."""

    def __init__(self, url: str, threads: int = 4) -> None:
        self.acknowledged: set[str] = set()
        self.tried: set[str] = set()
        self.refused = 0
        self._url = url
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, thread: int) -> None:
        number = 0
        with httpx.Client(base_url=self._url, timeout=UNTIL_S) as http:
            while not self._stopped.is_set():
                body, number = f"{thread}-{number}", number + 1
                self.tried.add(body)
                status = http.post(MESSAGES, json={"body": body}).status_code
                if status == 200:
                    self.acknowledged.add(body)
                else:
                    self.refused += 1
                    time.sleep(0.05)

    def wait_for(self, count: int) -> None:
        """Wait for so many acknowledged publishes."""
        wait_until(lambda: len(self.acknowledged) >= count, UNTIL_S)

    def stop(self) -> None:
        """End it."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(UNTIL_S)
            assert not thread.is_alive()
