"""A full disk: a small tmpfs in a separate mount namespace, which needs no privilege.

Sends are rejected with a reason. No acknowledged message is lost, not even by kill -9 and a start on the full disk.
Sends succeed again once there is space.
"""

import asyncio
import contextlib
import signal
import subprocess
import sys
from pathlib import Path

from mqtrail.net import ConnectionPool
from mqtrail.wire import (
    PullHeader,
    PullSysFlag,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendMessageHeader,
    decode_records,
)

from .rounds import QUEUES, KilledNode, create_topic

DISK_SIZE = 96 << 20
BODY_SIZE = 64 << 10
TOPIC = "full"
REQUEST_MS = 10_000
KEEPING = {"force_ratio": 1.0}  # otherwise a broker on a full disk deletes its oldest segments, like Apache's
ROOM_S_MAX = 20.0


def run_full_disk(folder: Path) -> int:
    """Run the scenario in a separate process tree with a small disk at folder; return its exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.crash", "--inside", str(folder)]
    mount = f'mount -t tmpfs -o size={DISK_SIZE} tmpfs "$0" && exec "$@"'
    return subprocess.run(["unshare", "-Urm", "sh", "-c", mount, str(folder), *command], check=False).returncode


async def fill_disk(folder: Path, *, sync_flush: bool) -> None:
    """Fill the disk under a broker, kill the broker, start it, then free space."""
    ballast = folder / "ballast"
    async with KilledNode(folder / "data", folder.parent / "full.log", sync_flush=sync_flush, store=KEEPING) as node:
        await node.start()
        await create_topic(node.broker, TOPIC)
        pool = ConnectionPool()
        acknowledged: list[bytes] = []
        refusal = await _send_until_refused(pool, node.broker, acknowledged)
        assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE, (refusal.code, refusal.remark)
        assert "free space" in (refusal.remark or ""), refusal.remark
        await _all_there(pool, node.broker, acknowledged)  # also creates the reader's group, while there is room
        fill(ballast)
        await _all_there(pool, node.broker, acknowledged)
        await node.end(signal.SIGKILL)
        await pool.close()
        recovery = await node.start()  # on a disk without a free byte
        pool = ConnectionPool()
        await _all_there(pool, node.broker, acknowledged)
        refusal = await _send_until_refused(pool, node.broker, acknowledged)
        assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE, (refusal.code, refusal.remark)
        ballast.unlink()
        _free(folder)
        for _ in range(int(ROOM_S_MAX / 0.2)):
            if (await _send(pool, node.broker, 999_999)).code == ResponseCode.SUCCESS:
                break
            await asyncio.sleep(0.2)
        else:
            raise AssertionError("sends were rejected although there was space again")
        await _all_there(pool, node.broker, acknowledged)
        await pool.close()
        assert await node.end(signal.SIGTERM) == 0
    print(f"full disk: {len(acknowledged)} messages acknowledged and kept; {recovery}", flush=True)


async def _send(pool: ConnectionPool, broker: str, number: int) -> RemotingCommand:
    header = SendMessageHeader("pg", TOPIC, queue_id=number % QUEUES, born_timestamp=1, properties="WAIT\x01true\x02")
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), _body(number))
    return await pool.request(broker, command, REQUEST_MS)


def _body(number: int) -> bytes:
    return (b"%d:" % number).ljust(BODY_SIZE, b".")


async def _send_until_refused(pool: ConnectionPool, broker: str, acknowledged: list[bytes]) -> RemotingCommand:
    while True:
        number = len(acknowledged)
        reply = await _send(pool, broker, number)
        if reply.code != ResponseCode.SUCCESS:
            return reply
        acknowledged.append(_body(number))


async def _all_there(pool: ConnectionPool, broker: str, acknowledged: list[bytes]) -> None:
    found: set[bytes] = set()
    for queue_id in range(QUEUES):
        offset = 0
        while True:
            header = PullHeader("reader", TOPIC, queue_id, offset, 32, int(PullSysFlag.SUBSCRIPTION), 0, 0, "*")
            reply = await pool.request(broker, RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext()), REQUEST_MS)
            if reply.code == ResponseCode.PULL_NOT_FOUND:
                break
            assert reply.code == ResponseCode.SUCCESS, (reply.code, reply.remark)
            found |= {message.body for message in decode_records(reply.body)}
            offset = int(reply.ext["nextBeginOffset"])
    lost = [body.split(b":")[0] for body in acknowledged if body not in found]
    assert not lost, f"acknowledged and lost: {lost[:10]}"


def fill(ballast: Path) -> None:
    """Fill the disk."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass


def _free(folder: Path) -> None:
    """Enlarge the disk, like an operator."""
    subprocess.run(["mount", "-o", f"remount,size={2 * DISK_SIZE}", str(folder)], check=True)
