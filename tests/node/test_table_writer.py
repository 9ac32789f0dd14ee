"""The thread that saves tables: the event loop neither encodes nor writes them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest

from mqtrail.node import table_writer
from mqtrail.node.table_writer import RELEASED_A_SLICE, TableWriter
from mqtrail.store import ConfigFileStore, MemoryDisk
from mqtrail.store.config_file import FOLLOW_UPS_A_SLICE


async def test_tables_are_encoded_and_written_by_the_thread() -> None:
    """The loop only copies them. Waiting replies are released when the tables are durable."""
    seen: list[tuple[str, bool]] = []
    loop_thread = threading.get_ident()

    class Disk(MemoryDisk):
        def replace(self, path: str, data: bytes) -> None:
            seen.append(("write", threading.get_ident() == loop_thread))
            super().replace(path, data)

    def document() -> Callable[[], bytes]:
        seen.append(("copy", threading.get_ident() == loop_thread))

        def content() -> bytes:
            seen.append(("encode", threading.get_ident() == loop_thread))
            return b"{}"

        return content

    files = ConfigFileStore(Disk(), gathers=True)
    writer = TableWriter(files, "test")
    released = asyncio.Event()
    number = files.change("table.json", document, lambda: None)
    writer.after(number, released.set, lambda why: None)
    assert not released.is_set()
    async with asyncio.timeout(60):
        await released.wait()
    assert seen == [("copy", True), ("encode", False), ("write", False)]
    await writer.stop()


async def test_what_follows_from_a_save_is_done_in_turns() -> None:
    """The loop serves requests meanwhile. A reply that waits for the save is released after all of it, also while
    stopping."""
    files = ConfigFileStore(MemoryDisk(), gathers=True)
    writer = TableWriter(files, "test")
    done: list[int] = []
    turns: list[int] = []
    count = 10 * FOLLOW_UPS_A_SLICE
    for number in range(count):
        change = files.change("table.json", lambda: lambda: b"{}", lambda: None)
        files.after(change, partial(done.append, number))
    released: list[int] = []
    writer.after(count, lambda: released.append(len(done)), lambda why: None)

    async def look() -> None:
        while not released:
            turns.append(len(done))
            await asyncio.sleep(0)
        turns.append(len(done))

    looking = asyncio.create_task(look())
    async with asyncio.timeout(60):
        await writer.stop()
        await looking
    assert done == list(range(count))
    assert released == [count]
    assert max(later - earlier for earlier, later in pairwise(turns)) <= FOLLOW_UPS_A_SLICE


async def test_replies_are_released_in_turns() -> None:
    """Each reply is released once, also those that wait for the next save."""
    files = ConfigFileStore(MemoryDisk(), gathers=True)
    writer = TableWriter(files, "test")
    released: list[int] = []
    turns: list[int] = []
    count = 5 * RELEASED_A_SLICE + 1

    def change() -> int:
        return files.change("table.json", lambda: lambda: b"{}", lambda: None)

    first = change()
    for number in range(count):
        writer.after(first, partial(released.append, number), lambda why: None)
    writer.after(change(), partial(released.append, count), lambda why: None)
    async with asyncio.timeout(60):
        while len(released) <= count:
            turns.append(len(released))
            await asyncio.sleep(0)
    turns.append(len(released))
    assert released == list(range(count + 1))
    assert max(later - earlier for earlier, later in pairwise(turns)) <= RELEASED_A_SLICE
    await writer.stop()


async def test_replies_of_a_failed_save_are_refused_in_turns() -> None:
    """Each reply is refused once, with the error."""

    class FullDisk(MemoryDisk):
        def replace(self, path: str, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    files = ConfigFileStore(FullDisk(), gathers=True)
    writer = TableWriter(files, "test")
    refused: list[str] = []
    turns: list[int] = []
    number = files.change("table.json", lambda: lambda: b"{}", lambda: None)
    count = 5 * RELEASED_A_SLICE
    for _ in range(count):
        writer.after(number, lambda: pytest.fail("acknowledged"), refused.append)
    async with asyncio.timeout(60):
        while len(refused) < count:
            turns.append(len(refused))
            await asyncio.sleep(0)
    turns.append(len(refused))
    assert all("No space left on device" in one for one in refused)
    assert max(later - earlier for earlier, later in pairwise(turns)) <= RELEASED_A_SLICE
    await writer.stop()


async def test_waiting_replies_are_bounded_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of all topics may have megabytes: a further reply is refused until others were released."""
    monkeypatch.setattr(table_writer, "WAITING_SIZE_MAX", 25)
    files = ConfigFileStore(MemoryDisk(), gathers=True)
    writer = TableWriter(files, "test")
    released: list[int] = []
    refused: list[str] = []

    def change() -> int:
        return files.change("table.json", lambda: lambda: b"{}", lambda: None)

    first = change()
    for number in range(3):
        writer.after(first, partial(released.append, number), refused.append, 10)
    assert len(refused) == 1
    assert "2 replies of 20 bytes" in refused[0]
    async with asyncio.timeout(60):
        while released != [0, 1]:
            await asyncio.sleep(0)
    writer.after(change(), partial(released.append, 3), refused.append, 10)
    await writer.stop()
    assert (released, len(refused)) == ([0, 1, 3], 1)
