"""Taking the table from a queue: the queue goes on where it was, without its messages, on the same node or another."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from mqtrail.store import GetStatus
from mqtrail.store.sql import SqlStore, look_at
from mqtrail.wire import ServiceNotAvailable

from .kinds import sqlite_url
from .test_contract import NOW_MS, bodies
from .test_nodes import EVERYTHING, node_url, opened, place_of, send

NODES = ("n1",)


def used(folder: Path, name: str) -> dict[int | None, tuple[int, int]]:
    """Return the queues of orders that have a table on a node, with their offsets there."""
    url = sqlite_url(folder) if name == "home" else node_url(folder, name)
    found = look_at(url, queues=True).queues or ()
    return {one.queue: (one.first, one.next) for one in found if one.state == "used" and one.topic == "orders"}


def filled(folder: Path, *names: str) -> SqlStore:
    """Return a store with three messages in each of two queues; with a node, the second one is there."""
    store = opened(folder, *names)
    for body in (b"0", b"1", b"2"):
        for queue_id in range(2):
            send(store, body, queue_id)
    store.flush()
    return store


def settle(store: SqlStore) -> None:
    """Do the upkeep of a broker."""
    for _ in range(3):
        store.flush()
        store.write_queues()


def check_goes_on(store: SqlStore, queue_id: int = 1, first: int = 3) -> None:
    """It has no message before its start, and takes the next one there."""
    assert (store.min_offset("orders", queue_id), store.max_offset("orders", queue_id)) == (first, first)
    assert store.read("orders", queue_id, 0, 9, EVERYTHING).status is GetStatus.OFFSET_TOO_SMALL
    send(store, b"next", queue_id)
    store.flush()
    found = store.read("orders", queue_id, first, 9, EVERYTHING)
    assert (bodies(found.records), found.next_queue_offset) == ([b"next"], first + 1)


@pytest.mark.parametrize("names", [(), NODES])
def test_a_table_is_free_again(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Its rows, places and keys are removed, another queue gets it, and offsets of the queue go on."""
    with closing(filled(tmp_path, *names)) as store:
        place = place_of(store, "orders", 1)
        saved = store.release_table("orders", 1, 3)
        assert not saved()
        settle(store)
        assert saved()
        assert 1 not in used(tmp_path, place)
        assert len(store.query("orders", "1", 9, 0, 1 << 62).records) == 1, "that of the other queue"
        assert not store.has_table("orders", 1)
        check_goes_on(store)
        assert used(tmp_path, place)[1] == (3, 4)


@pytest.mark.parametrize("to", ["home", "n1"])
def test_a_queue_moves_to_another_node(tmp_path: Path, to: str) -> None:
    """Its later messages are there, also after a restart."""
    with closing(filled(tmp_path, *NODES)) as store:
        (queue_id,) = (one for one in range(2) if place_of(store, "orders", one) != to)
        store.release_table("orders", queue_id, 3, to)
        settle(store)
        assert place_of(store, "orders", queue_id) == to
        check_goes_on(store, queue_id)
    with closing(opened(tmp_path, *NODES)) as store:
        assert place_of(store, "orders", queue_id) == to
        assert (store.min_offset("orders", queue_id), store.max_offset("orders", queue_id)) == (3, 4)
        assert used(tmp_path, to)[queue_id] == (3, 4)
        settle(store)
        assert queue_id not in used(tmp_path, "n1" if to == "home" else "home")


@pytest.mark.parametrize("names", [(), NODES])
@pytest.mark.parametrize("to", [None, "home"])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_crash_leaves_the_queue_as_it_was_or_without_its_table(
    tmp_path: Path, names: tuple[str, ...], to: str | None, steps: int
) -> None:
    """Before the first commit nothing has happened; after it the rest is done by the next start."""
    store = filled(tmp_path, *names)
    store.release_table("orders", 1, 3, to)
    store.write_queues()  # empties no table before the home knows
    if steps:
        changes, ends = store._nodes._changes[:], store._nodes._ends_to_note()
        store._nodes._save_changes(changes, ends, None)  # the first part of a flush
    if steps == 2:
        settle(store)
    store.abandon()
    with closing(opened(tmp_path, *names)) as store:
        settle(store)
        if not steps:
            assert bodies(store.read("orders", 1, 0, 9, EVERYTHING).records) == [b"0", b"1", b"2"]
            return
        assert bodies(store.read("orders", 0, 0, 9, EVERYTHING).records) == [b"0", b"1", b"2"]
        check_goes_on(store)
    with closing(opened(tmp_path, *names)) as store:
        found = store.read("orders", 1, 3, 9, EVERYTHING)
        assert (bodies(found.records), store.min_offset("orders", 1)) == ([b"next"], 3)


def test_a_table_is_not_taken_from_a_queue_that_gets_messages(tmp_path: Path) -> None:
    """A message that came after the end that the caller looked at is kept, committed or not."""
    with closing(filled(tmp_path)) as store:
        send(store, b"late", 1)
        with pytest.raises(ServiceNotAvailable, match="commits that wait"):
            store.release_table("orders", 1, 4)
        store.flush()
        with pytest.raises(ServiceNotAvailable, match="found new messages in orders/1, expected none after 3"):
            store.release_table("orders", 1, 3)
        assert bodies(store.read("orders", 1, 3, 9, EVERYTHING).records) == [b"late"]


def test_a_closed_queue_takes_no_messages_of_clients(tmp_path: Path) -> None:
    """Until it is opened, or the store is."""
    with closing(filled(tmp_path)) as store:
        store.close_queue("orders", 1, "found it closed")
        assert store.closes_queues
        assert store.why_closed("orders", 1, NOW_MS) == "found it closed"
        assert store.why_closed("orders", 0, NOW_MS) is None
        store.close_queue("orders", 1, None)
        assert (store.closes_queues, store.why_closed("orders", 1, NOW_MS)) == (False, None)


def test_a_deleted_topic_begins_at_zero_again(tmp_path: Path) -> None:
    """Where a queue went on is forgotten with its topic, also after a restart."""
    with closing(filled(tmp_path, *NODES)) as store:
        store.release_table("orders", 1, 3)
        settle(store)
        store.delete_topic("orders")
        settle(store)
    with closing(opened(tmp_path, *NODES)) as store:
        send(store, b"new", 1)
        store.flush()
        assert (store.min_offset("orders", 1), store.max_offset("orders", 1)) == (0, 1)
