"""The thread that saves tables: the event loop neither encodes nor writes them."""

import asyncio
import threading
from collections.abc import Callable

from mqtrail.node.table_writer import TableWriter
from mqtrail.store import ConfigFileStore, MemoryDisk


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
