"""The thread that saves tables: the event loop neither encodes nor writes them."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from mqtrail.node.table_writer import TableWriter
from mqtrail.store import ConfigFileStore, MemoryDisk
from mqtrail.store.config_file import FOLLOW_UPS_A_SLICE


async def test_tables_are_encoded_and_written_by_the_thread() -> None:
    """Only their copy is made in the loop. What waits is released when they are durable."""
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
    """The loop serves meanwhile. A reply that waits for the save is released after all of it, also while stopping."""
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
