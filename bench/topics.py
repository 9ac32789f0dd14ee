"""Benchmarks of administration: topics created in sequence over one connection, and the effect on concurrent sends."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext

from bench.broker import BOTH_CORES, PEER, WARMUP_S
from bench.load import Load, Shape, run_load
from bench.registry import figure
from bench.rows import Bar, Row
from bench.session import Pair, Server, Session
from mqtrail.wire import (
    CreateTopicHeader,
    FrameDecoder,
    Perm,
    RemotingCommand,
    RequestCode,
    decode_command,
    encode_command,
)

TOPICS, TOPICS_QUICK = 5_000, 200
LOAD_S, LOAD_QUICK_S = 4.0, 0.5
QUEUES = 8
STEADY = Shape("8x1", 8, 1)
TIMEOUT_S = 60.0
SIDES = ("apache", "ours")


class Operator:
    """One connection that creates topics like `mqadmin updateTopic`, each after the reply to the previous one."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder()

    def close(self) -> None:
        self._socket.close()

    def make(self, topic: str) -> None:
        """Create one topic; return when the broker has confirmed it."""
        ext = CreateTopicHeader(topic, QUEUES, QUEUES, int(Perm.READ | Perm.WRITE)).to_ext()
        self._socket.sendall(encode_command(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)))
        while (frame := self._decoder.next_frame()) is None:
            data = self._socket.recv(1 << 16)
            assert data, "the broker closed the connection"
            self._decoder.feed(data)
        reply = decode_command(frame)
        assert reply.code == 0, f"the broker refused topic {topic}: {reply.code} {reply.remark}"


@figure("topics", "5 000 topics made one by one, and sends meanwhile", seconds=240)
def topics(session: Session) -> Iterator[Row]:
    """The tables of both start empty and grow alike. Sends are measured alone, and during the creation of topics."""
    count = (TOPICS_QUICK if session.quick else TOPICS) // session.rounds
    pair = session.pair(BOTH_CORES)
    made = _made_in_turns(session, pair, count)
    sends: dict[str, tuple[list[Load], list[Load]]] = {}
    for name in SIDES:
        with pair.only(name) as server, closing(Operator(server.broker_address)) as operator:
            pair.settle(name)
            sends[name] = _sends_meanwhile(session, server, operator)
    yield Row(
        "topics/create",
        f"{count} topics made one after another over one connection, {session.rounds} times",
        "s",
        [sum(of_round) / 1000 for of_round in made["ours"]],
        [sum(of_round) / 1000 for of_round in made["apache"]],
        PEER,
        Bar("<=", 1),
        more={"median_ms": {_side(name): statistics.median(_all(of)) for name, of in made.items()}}
        | {"p99_ms": {_side(name): statistics.quantiles(_all(of), n=100)[98] for name, of in made.items()}},
    )
    alone, meanwhile = sends["ours"]
    yield Row(
        "topics/send-p99",
        "send p99, 8 × 1, while topics are made one after another; the peer is the same without",
        "ms",
        [load.p99_us / 1000 for load in meanwhile],
        [load.p99_us / 1000 for load in alone],
        "the same while none is made",
        Bar("<=", 2),
        errors=(sum(load.errors for load in meanwhile), sum(load.errors for load in alone)),
        more={"apache_ms": {"alone": _p99_ms(sends["apache"][0]), "meanwhile": _p99_ms(sends["apache"][1])}},
    )


def _side(name: str) -> str:
    return "ours" if name == "ours" else "peer"


def _p99_ms(loads: list[Load]) -> float:
    return statistics.median(load.p99_us for load in loads) / 1000


def _all(rounds: list[list[float]]) -> list[float]:
    return [value for of_round in rounds for value in of_round]


def _made_in_turns(session: Session, pair: Pair, count: int) -> dict[str, list[list[float]]]:
    """Create count topics on each side in every round, the sides in turn; return the ms of each, by side and round."""
    made: dict[str, list[list[float]]] = {name: [] for name in SIDES}
    for number in range(session.rounds):
        for name in SIDES if number % 2 == 0 else SIDES[::-1]:
            with pair.only(name) as server, closing(Operator(server.broker_address)) as operator:
                made[name].append([_timed_ms(operator, f"made-{number}-{place}") for place in range(count)])
    return made


def _timed_ms(operator: Operator, topic: str) -> float:
    began_s = time.perf_counter()
    operator.make(topic)
    return (time.perf_counter() - began_s) * 1000


def _sends_meanwhile(session: Session, server: Server, operator: Operator) -> tuple[list[Load], list[Load]]:
    """Return rounds of sends without and with concurrent creation of topics; every other round begins with the latter.

    The machine's speed drifts: the two halves of a round are compared with each other, and neither is always first.
    """
    seconds = LOAD_QUICK_S if session.quick else LOAD_S
    rounds: dict[bool, list[Load]] = {False: [], True: []}
    for number in range(session.rounds):
        for is_meanwhile in (False, True) if number % 2 == 0 else (True, False):
            with _making(operator, f"while-{number}") if is_meanwhile else nullcontext():
                load = run_load(server.broker_address, STEADY, seconds=seconds, warmup=WARMUP_S)
            rounds[is_meanwhile].append(load)
    return rounds[False], rounds[True]


@contextmanager
def _making(operator: Operator, name: str) -> Iterator[None]:
    """Create topics one after another as long as the block runs."""
    over = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        making = threads.submit(_make_until, operator, name, over)
        try:
            yield
        finally:
            over.set()
        making.result()


def _make_until(operator: Operator, name: str, over: threading.Event) -> None:
    number = 0
    while not over.is_set():
        operator.make(f"{name}-{number}")
        number += 1
