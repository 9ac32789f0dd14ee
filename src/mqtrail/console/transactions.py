"""Transactions: half messages that wait for their end, how often their producer was asked, and those given up."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mqtrail.answers import HalfRow, TransactionsAnswer
from mqtrail.answers.access import SeenCluster
from mqtrail.answers.changes import HALF_MESSAGES_MAX
from mqtrail.clock import now_ms

from .frame import (
    MARKS,
    Desk,
    PageReader,
    bounds,
    link,
    section,
    table,
    tag,
)
from .looks import UNKNOWN, count, duration
from .of_brokers import ask_brokers


async def transactions(desk: Desk, reader: PageReader) -> None:
    """Draw the transactions of all brokers, and load them again while the page is live."""
    draw = partial(_draw, reader, may_change=desk.changing is not None)
    command = ("transaction", "list", "/transactions")
    await ask_brokers(desk, reader, "transactions", "transactions_text", command, SeenCluster.transactions, draw)


def _draw(reader: PageReader, answer: TransactionsAnswer, *, may_change: bool) -> None:
    bounds(reader, answer.scope, is_open=True)
    with section(reader.say("brokers")):
        names = (
            "broker",
            "open_half_messages",
            "oldest_half",
            "given_up",
            "checks",
            "check_interval",
            "timeout",
            "why",
        )
        with table([reader.say(name) for name in names], reader.say("brokers")) as add:
            for one in answer.brokers:
                oldest = "–" if one.open_count == 0 else _age(one.oldest_ms)
                limits = (count(one.check_count_max), duration(one.check_interval_ms), duration(one.timeout_ms))
                add([one.broker, count(one.open_count), oldest, count(one.given_up_count), *limits, one.why])
    with section(reader.say("open_half_messages")):
        if answer.open:
            names = ("id", "keys", "topic", "producer_group", "age_of_half", "checks", "checks_left", "broker")
            with table([reader.say(name) for name in names], reader.say("open_half_messages")) as add:
                for half in answer.open:
                    asked = (count(half.check_count), count(half.checks_left))
                    add([*_about(half), _age(half.born_ms), *asked, half.broker])
            opened = [one.open_count for one in answer.brokers]
            _rest(sum(one or 0 for one in opened) - len(answer.open))
        elif any(one.open_count is None for one in answer.brokers):
            tag("p", f"{reader.say('open_half_messages')}: {UNKNOWN}")
        else:
            tag("p", reader.say("no_half_messages"))
    with section(reader.say("given_up")):
        _given_up(reader, answer, may_change=may_change)


def _given_up(reader: PageReader, answer: TransactionsAnswer, *, may_change: bool) -> None:
    if not answer.given_up:
        is_unknown = any(one.given_up_count is None for one in answer.brokers)
        tag("p", f"{reader.say('given_up')}: {UNKNOWN}" if is_unknown else reader.say("none_given_up"))
        return
    tag("p", reader.say("given_up_text"), "quiet")
    again = [one.place for one in answer.given_up if not one.is_waiting][:HALF_MESSAGES_MAX]
    if may_change and again:
        places = "\n".join(again)
        link(f"{reader.say('ask_all', count=len(again))} …", "/change", "button", action="resume-checks", places=places)
    names = ("id", "keys", "topic", "producer_group", "age_of_half", "state", *(["action"] if may_change else []))
    with table([reader.say(name) for name in names], reader.say("given_up")) as add:
        for half in answer.given_up:

            def ask(half: HalfRow = half) -> None:
                if not half.is_waiting:
                    link(f"{reader.say('ask_again')} …", "/change", action="resume-checks", places=half.place)

            state = f"{MARKS['warning']} {reader.say('given_up')}"
            if half.is_waiting:
                state = f"{MARKS['open']} {reader.say('put_back_already')}"
            row = [*_about(half), _age(half.born_ms), UNKNOWN if half.is_waiting is None else state]
            add([*row, ask] if may_change else row)
    _rest(sum(one.given_up_count or 0 for one in answer.brokers) - len(answer.given_up))


def _about(half: HalfRow) -> Sequence[object]:
    def msg_id() -> None:
        link(half.msg_id, "/message", id=half.msg_id)

    return [msg_id, half.keys, half.topic, half.producer_group]


def _age(born_ms: int | None) -> str:
    return duration(None if born_ms is None else max(0, now_ms() - born_ms))


def _rest(number: int) -> None:
    if number > 0:
        tag("p", f"+ {count(number)}", "quiet")
