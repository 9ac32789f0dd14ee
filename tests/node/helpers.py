"""A node in a separate process, and short functions to talk to brokers."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mqtrail.net import ConnectionPool
from mqtrail.node import Node, NodeConfig
from mqtrail.node.broker_node import BrokerNode
from mqtrail.wire import (
    MessageExt,
    PullHeader,
    PullSysFlag,
    RemotingCommand,
    RequestCode,
    SendMessageHeader,
    decode_records,
)

PROGRAM = """
import json, sys
from pathlib import Path
from mqtrail.broker import BrokerConfig
from mqtrail.node import NodeConfig, run_up
from mqtrail.store import CommitLogConfig
from tests.waiting import wait_until
from contextlib import asynccontextmanager

given = json.loads(sys.argv[1])
config = NodeConfig(
    data=Path(given["data"]),
    namesrv_port=given.get("namesrv_port", 0),
    broker_port=given.get("broker_port", 0),
    broker_names=tuple(given.get("broker_names", ["broker-a"])),
    broker=BrokerConfig(sync_flush=given.get("sync_flush", False)),
    store=CommitLogConfig(segment_size=1 << 24),
    store_url=given.get("store_url", ""),
)

def ready(node):
    print(json.dumps({"namesrv": node.namesrv_address, "brokers": list(node.broker_addresses)}), flush=True)

sys.exit(run_up(config, on_ready=ready, use_uvloop=given.get("uvloop", True)))
"""


class NodeProcess:
    """Runs `mqtrail up`, without the CLI."""

    def __init__(self, data: Path, **settings: Any) -> None:
        self._settings = {"data": str(data), **settings}
        self.namesrv = ""
        self.brokers: list[str] = []
        self.ready_s = 0.0

    def __enter__(self) -> Self:
        began_s = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(self._settings)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        found = json.loads(line)
        self.ready_s = time.monotonic() - began_s
        self.namesrv, self.brokers = found["namesrv"], found["brokers"]
        return self

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal, wait; return the exit code and what it wrote to standard error, without stalls of its loop.

        A busy machine stalls the loop whatever the node does.
        """
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        _, complaints = self.process.communicate(timeout=60)
        lines = complaints.splitlines(keepends=True)
        return self.process.returncode, "".join(line for line in lines if "loop.stalled" not in line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def send_command(topic: str, body: bytes, *, queue_id: int = 0, key: str = "k") -> RemotingCommand:
    """Return an ordinary send with its body's text as unique id."""
    properties = f"KEYS\x01{key}\x02UNIQ_KEY\x01{body.hex().upper()}\x02WAIT\x01true\x02"
    header = SendMessageHeader("pg", topic, queue_id=queue_id, born_timestamp=1, properties=properties)
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), body)


async def read_all(pool: ConnectionPool, broker: str, topic: str, queue_ids: Sequence[int]) -> list[MessageExt]:
    """Pull whole queues."""
    found = []
    for queue_id in queue_ids:
        offset = 0
        while True:
            header = PullHeader("reader", topic, queue_id, offset, 32, PullSysFlag.SUBSCRIPTION, 0, 0, "*")
            reply = await pool.request(broker, RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext()), 30_000)
            if reply.code != 0:
                break
            found += decode_records(reply.body)
            offset = int(reply.ext["nextBeginOffset"])
    return found


async def pull_once(
    pool: ConnectionPool, broker: str, topic: str, queue_id: int, offset: int, *, hold_ms: int
) -> RemotingCommand:
    """Pull from one place, and wait there for messages."""
    flags = PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND
    header = PullHeader("reader", topic, queue_id, offset, 32, flags, 0, hold_ms, "*")
    return await pool.request(broker, RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext()), hold_ms + 10_000)


def broker_of(node: Node, name: str = "broker-a") -> BrokerNode:
    """Return a broker of a node that no controller runs."""
    broker = node.brokers[name]
    assert isinstance(broker, BrokerNode)
    return broker


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[Node, ConnectionPool]]:
    """A node on free ports, and connections to it."""
    node = Node(NodeConfig(**{"namesrv_port": 0, "broker_port": 0, **settings}))
    await node.start()
    pool = ConnectionPool()
    try:
        yield node, pool
    finally:
        await pool.close()
        await node.stop()
