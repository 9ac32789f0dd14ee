"""The fast lane beside `Broker.handle` alone: CPU per request, without sockets, in one process and one thread.

Both sides get the same frames and write to their own CommitLog. The side of `handle` does what the shell does
without the lane: cut the frame, decode the command, handle it, encode the replies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Final

from bench.registry import figure
from bench.rows import Bar, Row
from bench.session import Session
from mqtrail.broker import Broker, BrokerConfig, Lane
from mqtrail.store import CommitLogConfig, CommitLogStore, RealDisk
from mqtrail.wire import (
    BatchItem,
    ConsumerData,
    HeartbeatData,
    Host,
    Peer,
    PeerId,
    ProducerData,
    PullHeader,
    PullSysFlag,
    RemotingCommand,
    RequestCode,
    SendMessageHeader,
    SubscriptionData,
    TopicConfig,
    cut_frame,
    decode_command,
    encode_batch,
    encode_command,
    encode_properties,
    frame_end,
)

TOPIC: Final = "BenchLane"
GROUP: Final = "g"
PEER: Final = Peer(PeerId(1), Host("127.0.0.1", 40_001))
BODY: Final = b"x" * 500
BATCH_COUNT: Final = 32
PIECE_FRAMES: Final = 16  # requests per socket read
ROUND_S: Final = 0.4


class Side:
    """A broker with its own store."""

    def __init__(self, folder: Path) -> None:
        self.now_ms = time.time_ns() // 1_000_000
        disk = RealDisk(folder)
        self.store = CommitLogStore(disk, CommitLogConfig(segment_size=256 << 20, index=False))
        numbers = count()
        self.broker = Broker(
            BrokerConfig(statistics=True), self.store, unique_id=lambda: f"{next(numbers):032X}", now_ms=self.now_ms
        )
        self.broker.topics.update(TopicConfig(TOPIC, 4, 4), self.now_ms)
        subscription = SubscriptionData.build(TOPIC, "*", sub_version=self.now_ms)
        beat = HeartbeatData("c1", (ProducerData("pg"),), (ConsumerData(GROUP, subscription_data_set=(subscription,)),))
        self.broker.handle(PEER, RemotingCommand(RequestCode.HEART_BEAT, {}, beat.encode()), self.now_ms)
        self.lane = Lane(self.broker)

    def by_lane(self, piece: bytes) -> None:
        """Serve a piece as the shell does."""
        position = 0
        while position < len(piece):
            position = self.lane.process(PEER, piece, position, len(piece), self.now_ms).position

    def by_handle(self, piece: bytes) -> None:
        """Serve a piece without the lane."""
        position = 0
        while position < len(piece):
            end = frame_end(piece, position, len(piece))
            command = decode_command(cut_frame(piece, position, end))
            for send in self.broker.handle(PEER, command, self.now_ms):
                encode_command(send.command)
            position = end


def send_piece(now_ms: int) -> bytes:
    """Return sends of one message each."""
    properties = encode_properties({"UNIQ_KEY": "0" * 32, "WAIT": "true", "TAGS": "a"})
    header = SendMessageHeader("pg", TOPIC, queue_id=1, born_timestamp=now_ms, properties=properties)
    return _piece(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), BODY)


def batch_piece(now_ms: int) -> bytes:
    """Return sends of batches."""
    items = (
        BatchItem(BODY, encode_properties({"UNIQ_KEY": f"{number:032X}", "WAIT": "true"}).encode())
        for number in range(BATCH_COUNT)
    )
    properties = encode_properties({"UNIQ_KEY": "0" * 32, "WAIT": "true"})  # Java's client sets both for a batch
    header = SendMessageHeader("pg", TOPIC, queue_id=1, born_timestamp=now_ms, properties=properties, batch=True)
    return _piece(RequestCode.SEND_BATCH_MESSAGE, header.to_ext_v2(), encode_batch(items))


def pull_piece(now_ms: int) -> bytes:
    """Return pulls of 32 messages."""
    header = PullHeader(GROUP, TOPIC, 1, 0, 32, PullSysFlag.SUBSCRIPTION, 0, 0, "*", now_ms)
    return _piece(RequestCode.PULL_MESSAGE, header.to_ext())


def _piece(code: int, ext: dict[str, str], body: bytes = b"") -> bytes:
    return b"".join(
        encode_command(RemotingCommand(code, ext, body, opaque=number)) for number in range(1, PIECE_FRAMES + 1)
    )


SHAPES: Final = {"send": send_piece, "batch": batch_piece, "pull": pull_piece}


@figure("lane", "the fast lane beside handle alone: CPU of a send, a batch and a pull", seconds=20)
def lane(session: Session) -> Iterator[Row]:
    """Rounds alternate. The target is the gain that justifies the second implementation of the checks."""
    sides = {name: Side(session.fresh_folder(f"lane-{name}")) for name in ("lane", "handle")}
    serve = {"lane": sides["lane"].by_lane, "handle": sides["handle"].by_handle}
    for shape, piece_of in SHAPES.items():
        found: dict[str, list[float]] = {"lane": [], "handle": []}
        piece = piece_of(sides["lane"].now_ms)
        for number in range(session.rounds):
            for name in session.order(number, ("lane", "handle")):
                found[name].append(cpu_us(serve[name], piece))
                sides[name].store.flush()
        for side in sides.values():
            side.store.write_queues()
        what = f"CPU of a {shape}{' of 32' if shape == 'batch' else ''}, fast lane beside handle alone"
        yield Row(f"lane/{shape}", what, "µs", found["lane"], found["handle"], "Broker.handle", Bar("<=", 0.7))
    for side in sides.values():
        side.store.close()


def cpu_us(serve: Callable[[bytes], None], piece: bytes) -> float:
    """Return the CPU time per request, µs."""
    served, began_s = 0, time.process_time()
    while (spent_s := time.process_time() - began_s) < ROUND_S:
        serve(piece)
        served += PIECE_FRAMES
    return spent_s / served * 1e6
