"""A concern that fails unexpectedly does not stop the others, nor requests that wait with its own."""

from typing import cast

import pytest

from mqtrail.broker.tables import HeldPull
from mqtrail.wire import Host, Job, Peer, PeerId, RequestCode, ResponseCode, Send, SendMessageHeader, Work

from .helpers import OTHER, PEER, Bench

SENDER = Peer(PeerId(3), Host("10.0.0.3", 40003))

TICKED = {
    "delays": ("delays", "deliver"),
    "timers": ("timers", "deliver"),
    "revive": ("pop.revive", "tick"),
    "stats": ("stats", "tick"),
    "save": ("offsets", "save"),
    "transactions": ("transactions", "tick"),
    "slow groups": ("_concerns.slow_groups", "tick"),
    "clients": ("_concerns.clients", "tick"),
    "forwards": ("_concerns.forwards", "tick"),
    "held": ("held", "take_due"),
    "pop": ("pop", "tick"),
}


class Failing(Bench):
    """A broker whose shell notes failures, and whose concerns note their calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broken: str = "", table: dict[str, tuple[str, str]] = TICKED):
        super().__init__()
        self.failed: list[str] = []
        self.called: list[str] = []
        self.broker.parts.report = self.failed.append
        for name, (path, method) in table.items():
            concern: object = self.broker
            for part in path.split("."):
                concern = getattr(concern, part)

            def call(*_args: object, name: str = name, **_settings: object) -> list[object]:
                self.called.append(name)
                if name == broken:
                    raise ZeroDivisionError(name)
                return []

            monkeypatch.setattr(concern, method, call)


@pytest.mark.parametrize("broken", TICKED)
def test_a_failing_concern_does_not_stop_the_rest_of_a_tick(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All others work in the same tick."""
    bench = Failing(monkeypatch, broken)
    bench.now_ms += bench.config.offsets_save_ms
    bench.broker.tick(bench.now_ms)
    assert bench.called == list(TICKED)
    assert bench.failed == ["offsets" if broken == "save" else broken]


SAVED = {
    "transactions": ("transactions", "save"),
    "pop": ("pop", "save"),
    "broadcasts": ("_concerns.broadcasts", "commit"),
    "offsets": ("offsets", "save"),
    "filters": ("filters", "save"),
    "delays": ("delays", "save"),
    "timers": ("timers", "save"),
}


@pytest.mark.parametrize("broken", SAVED)
def test_a_table_that_cannot_be_made_does_not_stop_the_others(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each concern saves its own tables."""
    bench = Failing(monkeypatch, broken, SAVED)
    bench.broker.save(bench.now_ms)
    assert (bench.called, bench.failed) == (list(SAVED), [broken])


CLOSED = {
    "held": ("held", "disconnect"),
    "jobs": ("jobs", "disconnected"),
    "pop": ("pop", "disconnected"),
    "clients": ("_concerns.clients", "disconnected"),
    "forwards": ("_concerns.forwards", "disconnected"),
}


@pytest.mark.parametrize("broken", CLOSED)
def test_a_closed_connection_is_forgotten_by_all_others(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection closes once: what is not removed then stays."""
    bench = Failing(monkeypatch, broken, CLOSED)
    bench.broker.disconnected(PeerId(1))
    assert (bench.called, bench.failed) == (list(CLOSED), [broken])


def test_a_held_pull_that_fails_is_answered_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The send that wakes it succeeds, and so does the pull of another client behind it."""
    bench = Failing(monkeypatch, table={})
    bench.send()
    for peer in (PEER, OTHER):
        assert bench.tell(RequestCode.PULL_MESSAGE, bench.pull_ext(queue_offset=1, hold_ms=60_000), peer=peer) == []
    served = bench.broker._concerns.pull.serve_held

    def serve_held(pull: HeldPull, now_ms: int) -> list[Send]:
        if pull.peer == PEER:
            raise ZeroDivisionError("boom")
        return served(pull, now_ms)

    monkeypatch.setattr(bench.broker._concerns.pull, "serve_held", serve_held)
    header = SendMessageHeader("pg", "orders", queue_id=0, born_timestamp=bench.now_ms)
    sends = bench.tell(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), b"hi", peer=SENDER)
    answers = {send.peer: send.command for send in sends}
    assert answers[SENDER.id].code == answers[OTHER.id].code == ResponseCode.SUCCESS
    assert answers[PEER.id].code == ResponseCode.SYSTEM_ERROR
    assert "ZeroDivisionError: boom" in str(answers[PEER.id].remark)
    assert bench.failed == ["request 11"]


def test_a_request_in_slices_that_fails_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its later slices run in a tick."""
    bench = Failing(monkeypatch, table={})

    def step(_job: Job) -> list[Send]:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(bench.broker.jobs, "take", lambda: Job(PEER, bench.request(43), cast(Work, iter(())), 0))
    monkeypatch.setattr(bench.broker.jobs, "step", step)
    (send,) = bench.broker.tick(bench.now_ms)
    assert (send.peer, send.command.code, bench.failed) == (PEER.id, ResponseCode.SYSTEM_ERROR, ["request 43"])


def test_without_a_shell_a_failure_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no test overlooks it."""
    bench = Failing(monkeypatch, "pop")
    bench.broker.parts.report = None
    with pytest.raises(ZeroDivisionError):
        bench.broker.tick(bench.now_ms)
