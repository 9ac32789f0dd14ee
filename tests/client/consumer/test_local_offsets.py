"""Offsets of broadcasting consumers: Java's file is read and written, and two consumers never share one."""

import asyncio
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from mqtrail.client import ClientError, Consumer, MessageModel
from mqtrail.client.consumer.local_offsets import LocalOffsets
from mqtrail.wire import MessageQueue, QueueOffsets
from tests.waiting import until

from ..fake_cluster import fake_cluster
from .test_consumer import QUICK, consume, put

FIRST, SECOND = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)

# What rocketmq-client 4.9.8 and 5.3.3 write for FIRST at 5 and SECOND at 2**32.
JAVA_FILE = (
    b'{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"orders"\n\t\t}:5,'
    b'{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":1,\n\t\t\t"topic":"orders"\n\t\t}:4294967296\n\t}\n}'
)
# What both read as the same two.
OUR_FILE = (
    b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:5,'
    b'{"brokerName":"broker-a","queueId":1,"topic":"orders"}:4294967296}}'
)


def offsets_in(folder: Path) -> LocalOffsets:
    return LocalOffsets(folder, "10.0.0.1@DEFAULT", "CG")


def file_in(folder: Path) -> Path:
    return folder / "10.0.0.1@DEFAULT" / "CG" / "offsets.json"


async def test_the_file_is_javas(tmp_path: Path) -> None:
    """We continue where a Java consumer stopped, and it can continue after us."""
    file_in(tmp_path).parent.mkdir(parents=True)
    file_in(tmp_path).write_bytes(JAVA_FILE)
    offsets = offsets_in(tmp_path)
    await offsets.open()
    assert (await offsets.read(FIRST), await offsets.read(SECOND)) == (5, 1 << 32)
    assert await offsets.read(replace(FIRST, queue_id=7)) is None
    offsets.update(FIRST, 4)
    offsets.update(FIRST, 3)
    assert offsets.noted(FIRST) == 4
    await offsets.persist([FIRST, SECOND])
    await offsets.store({FIRST: 5})
    assert file_in(tmp_path).read_bytes() == OUR_FILE
    assert QueueOffsets.decode(file_in(tmp_path).with_name("offsets.json.bak").read_bytes()).offset_table == {
        FIRST: 4,
        SECOND: 1 << 32,
    }
    await offsets.close()


DAMAGES = [b"", b"{", b"[]", b"null", b"{}", b'{"offsetTable":null}', b"\xff\xfe{", bytes(100)]


@pytest.mark.parametrize("damage", [*DAMAGES, None])
async def test_a_damaged_file_gives_way_to_the_one_before(tmp_path: Path, damage: bytes | None) -> None:
    """If the file is empty, unreadable or missing, the backup is read, and kept until there is a newer one."""
    path = file_in(tmp_path)
    path.parent.mkdir(parents=True)
    if damage is not None:
        path.write_bytes(damage)
    copy = path.with_name("offsets.json.bak")
    copy.write_bytes(JAVA_FILE)
    offsets = offsets_in(tmp_path)
    await offsets.open()
    assert await offsets.read(FIRST) == 5
    await offsets.store({FIRST: 6})
    assert copy.read_bytes() == JAVA_FILE, "the damaged file must not replace it"
    await offsets.store({FIRST: 7})
    assert QueueOffsets.decode(copy.read_bytes()).offset_table[FIRST] == 6
    await offsets.close()


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_consumer_of_damaged_offsets_does_not_start(tmp_path: Path, damage: bytes) -> None:
    """Without offsets it would skip all messages stored meanwhile; only a missing file means a new consumer."""
    path = file_in(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)
    offsets = offsets_in(tmp_path)
    with pytest.raises(ClientError, match=r"cannot read the offsets: .*offsets\.json.*repair"):
        await offsets.open()
    assert path.read_bytes() == damage
    path.unlink()
    await offsets.open()
    assert await offsets.read(FIRST) is None
    await offsets.close()


async def test_two_consumers_of_a_group_do_not_share_a_file(tmp_path: Path) -> None:
    """The second consumer on a host is refused with the remedy, and can use another name; Java's would overwrite each
    other's file."""
    async with fake_cluster({"orders": 1}) as cluster:
        put(cluster.brokers[0], "orders", b"x")
        config = replace(QUICK, model=MessageModel.BROADCASTING, offset_dir=tmp_path)
        other = replace(config, instance_name="second")
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as first:
            with pytest.raises(ClientError, match="instance_name"):
                await Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config).start()
            async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=other) as second:
                assert await consume(first, 1) == await consume(second, 1) == [b"x"]
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as again:
            await until(lambda: again.assignment)
            put(cluster.brokers[0], "orders", b"y")
            assert await consume(again, 1) == [b"y"], "the place after what the first had"


async def test_a_write_without_a_waiter_is_not_overtaken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit is cancelled during its write, as at a close: the next one waits for it, and the newer offset is
    kept."""
    sync = os.fsync
    writing, go_on = threading.Event(), threading.Event()

    def slow_sync(file: int) -> None:
        writing.set()
        assert go_on.wait(60)
        sync(file)

    offsets = offsets_in(tmp_path)
    await offsets.open()
    offsets.update(FIRST, 1)
    monkeypatch.setattr(os, "fsync", slow_sync)
    periodic = asyncio.create_task(offsets.persist([FIRST]))
    await until(writing.is_set)
    periodic.cancel()
    await asyncio.wait([periodic])
    offsets.update(FIRST, 2)
    last = asyncio.create_task(offsets.persist([FIRST]))
    for _ in range(3):
        await asyncio.sleep(0)
    go_on.set()
    await last
    await offsets.close()
    assert QueueOffsets.decode(file_in(tmp_path).read_bytes()).offset_table == {FIRST: 2}


async def test_a_disk_that_refuses_is_no_end(tmp_path: Path) -> None:
    """A failed write is logged and retried; an explicit commit raises the error."""
    offsets = offsets_in(tmp_path)
    await offsets.open()
    blocker = file_in(tmp_path).with_name("offsets.json.tmp")
    blocker.mkdir()
    offsets.update(FIRST, 1)
    await offsets.persist([FIRST])
    with pytest.raises(ClientError, match="cannot write offsets"):
        await offsets.store({FIRST: 2})
    blocker.rmdir()
    await offsets.persist([FIRST])
    assert QueueOffsets.decode(file_in(tmp_path).read_bytes()).offset_table == {FIRST: 2}
    await offsets.close()
