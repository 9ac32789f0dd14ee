"""Requests create no reference cycles.

The server collects garbage rarely (garbage.GC_THRESHOLD). A cycle through the frame of a served request would keep the
request, up to 16 MiB, until then: a few dozen refused requests would take gigabytes.
"""

import contextlib
import gc
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from mqtrail.broker import Broker, requests
from mqtrail.namesrv import NameServer, NameServerConfig
from mqtrail.namesrv import requests as namesrv_requests
from mqtrail.store import StoreError
from mqtrail.wire import Credentials, Peer, Refusal, RemotingCommand, RequestCode, Send, sign

from .helpers import NOW_MS, PEER, Bench

ROOT = '{"username":"root","password":"rootpass"}'
EXT = {"topic": "t", "consumerGroup": "g", "group": "g", "producerGroup": "g", "queueId": "0", "a": "g", "b": "t"}
BODIES = (b"", b"junk", b"{}", b"x" * (5 << 20))
ACCESS: tuple[dict[str, Any], ...] = (
    {},
    {"authentication": True, "authorization": True, "init_user": ROOT},
    {"acl": True},
)


def kept_frames(act: Callable[[], object]) -> set[str]:
    """Return the functions of servers whose frames only the garbage collector can free after act."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        act()
        gc.collect()
        codes = [found.f_code for found in gc.garbage if isinstance(found, FrameType)]
        return {code.co_name for code in codes if "mqtrail/broker" in code.co_filename or "namesrv" in code.co_filename}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        if was_on:
            gc.enable()


def asked(code: int) -> list[RemotingCommand]:
    """Return requests of a code: with and without fields, with bodies of each kind, with an unknown and a known
    signer."""
    made = [RemotingCommand(code, dict(ext), body) for ext in ({}, EXT) for body in BODIES]
    for name in ("root", "nobody"):
        for body in BODIES:
            made.append(RemotingCommand(code, dict(EXT), body))
            sign(made[-1], Credentials(access_key=name, secret_key="rootpass"))
    return made


@pytest.mark.slow
def test_a_planted_cycle_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that stores the error it caught is kept by the traceback of that error."""
    bench = Bench()

    def refuse(broker: Broker, peer: Peer, request: RemotingCommand, refusal: Refusal) -> list[Send]:
        try:
            raise refusal
        except Refusal:
            return []

    monkeypatch.setattr(Broker, "_refuse", refuse)
    request = RemotingCommand(RequestCode.HEART_BEAT, {}, BODIES[-1])
    assert kept_frames(lambda: bench.broker.handle(PEER, request, NOW_MS)) == {"handle"}


@pytest.mark.slow
@pytest.mark.parametrize("settings", ACCESS, ids=["open", "users", "files"])
def test_no_request_of_a_broker_is_kept(settings: dict[str, Any]) -> None:
    bench = Bench(**settings)

    def ask_all() -> None:
        for code in (*requests.REQUESTS, 9_999):
            for request in asked(code):
                bench.broker.handle(PEER, request, NOW_MS)
                while len(bench.broker.jobs):
                    bench.broker.tick(NOW_MS)

    assert kept_frames(ask_all) == set()


@pytest.mark.slow
def test_no_held_pull_is_kept_whose_permission_ended() -> None:
    bench = Bench(authentication=True, authorization=True, init_user=ROOT)
    pull = RemotingCommand(RequestCode.PULL_MESSAGE, bench.pull_ext("t", 0, hold_ms=10_000))
    sign(pull, Credentials(access_key="root", secret_key="rootpass"))
    create = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "t", "readQueueNums": "1"})

    def end() -> None:
        for request in (create, pull):
            bench.broker.handle(PEER, request, NOW_MS)
        bench.broker.access.auth.users.clear()
        bench.broker.access._changed()
        bench.broker.tick(NOW_MS + 20_000)

    assert kept_frames(end) == set()


@pytest.mark.slow
def test_no_error_of_periodic_work_is_kept() -> None:
    """The store's errors are raised after the other work of the tick, without the frames of this tick."""
    bench = Bench()
    revive = bench.broker.pop.revive

    def fail() -> None:
        try:
            raise StoreError("full")
        except StoreError as error:
            revive._error = error
        for _ in range(2):
            with contextlib.suppress(StoreError):
                revive.tick(NOW_MS + 1)

    assert kept_frames(fail) == set()
    assert revive._error is None


@pytest.mark.slow
@pytest.mark.parametrize("acl", [False, True])
def test_no_request_of_a_name_server_is_kept(acl: bool) -> None:
    server = NameServer(NameServerConfig(acl=acl), now_ms=NOW_MS)

    def ask_all() -> None:
        for code in (*namesrv_requests.REQUESTS, 9_999):
            for request in asked(code):
                server.handle(PEER, request, NOW_MS)
                while server.next_tick_ms() <= NOW_MS:
                    server.tick(NOW_MS)

    assert kept_frames(ask_all) == set()
