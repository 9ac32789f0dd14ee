"""A change to the cluster: its plan, a button that makes it, the result of each part, and the verdicts afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

from nicegui import ui
from starlette.datastructures import QueryParams

from mqtrail.answers import DeadLetterConditions, MembersAnswer, TraceAnswer
from mqtrail.answers.changes import (
    LETTERS_MAX,
    Actor,
    Change,
    ChangeOutcome,
    ChangePlan,
    CloneOffsets,
    ConsumeDirectly,
    DeleteGroup,
    DeleteTopic,
    Fate,
    InvalidChange,
    RecallMessage,
    ResendDeadLetters,
    ResendEdited,
    ResendMessage,
    ResetOffsets,
    ResumeChecks,
    SetBrokerSettings,
    SetConsumeMode,
    SetGroup,
    SetOffset,
    SetTopic,
)
from mqtrail.answers.http import Changing
from mqtrail.clock import now_ms
from mqtrail.gateway import Problem
from mqtrail.wire import IdError, MessageQueue, number_of, parse_moment

from .frame import MARKS, Desk, PagePart, PageReader, bounds, codes, commands, frame, link, section, table, tag
from .looks import count

PATH: Final = "/change"
ROWS_MAX: Final = 1_000
FOLLOWED_MAX: Final = 20
FOLLOW_S: Final = 5.0
PROGRESS_S: Final = 0.5
FATES: Final = {Fate.DONE: "good", Fate.FAILED: "error", Fate.UNKNOWN: "warning"}
ACTIONS: Final = (
    *("reset-offsets", "resend-dead-letters", "resend-message", "consume-directly"),
    *("set-topic", "delete-topic", "set-group", "delete-group", "set-broker-settings"),
    *("recall-message", "resume-checks", "set-consume-mode", "clone-offsets", "set-offset"),
)
COUNTS: Final = ("skipped", "repeated", "unreadable", "deleted")


async def change(desk: Desk, changing: Changing, reader: PageReader, asked: QueryParams, actor: Actor) -> None:
    """Draw the plan of the change in the address. Nothing is changed before the button is pressed."""
    action = asked.get("action", "")
    with frame(reader, reader.say(action if action in ACTIONS else "change")):
        tag("p", reader.say("change_text"), "quiet")
        plan = PagePart(desk, reader)
        button = tag("button", reader.say("do_it"), type="button")
        button.set_visibility(False)
        outcomes = tag("div", **{"aria-live": "polite"})
    await ui.context.client.connected()
    if action == "consume-directly" and not asked.get("client"):
        group = asked.get("group", "")
        await plan.show(partial(desk.sources.of_cluster().members, group), partial(_members, reader, asked))
        return
    try:
        wanted = await _change_of(desk, asked)
        found = await changing.plan(wanted, desk.sources)
    except (Problem, InvalidChange, ValueError) as error:
        plan.fail(str(error))
        return
    plan.put(lambda: draw_plan(reader, found))
    button.set_visibility(bool(found.steps))

    async def do() -> None:
        button.set_visibility(False)
        await perform(Doing(desk, changing, reader, wanted, actor), found, outcomes)

    button.on("click", do)


async def _change_of(desk: Desk, asked: QueryParams) -> Change:
    """Return the change that the address names. InvalidChange, ValueError, Problem."""
    group = asked.get("group", "")
    is_to_topic = "to_topic" in asked
    match asked.get("action"):
        case "reset-offsets":
            to = asked.get("to", "").strip()
            at_ms = {"first": 0, "end": -1}.get(to)
            at_ms = parse_moment(to, now_ms()) if at_ms is None else at_ms
            return ResetOffsets(
                group=group, topic=asked.get("topic", ""), at_ms=at_ms, is_backward_only="no_skip" in asked
            )
        case "clone-offsets" | "set-offset":
            return _of_offsets(asked)
        case "resend-dead-letters":
            msg_ids = asked.getlist("id") or await _matching(desk, asked)
            return ResendDeadLetters(group=group, msg_ids=tuple(msg_ids), is_to_topic=is_to_topic)
        case "resend-message":
            return ResendMessage(place=asked.get("place", ""), group=group, is_to_topic=is_to_topic)
        case "consume-directly":
            return ConsumeDirectly(place=asked.get("place", ""), group=group, client_id=asked.get("client", ""))
        case "set-topic" | "delete-topic" | "set-group" | "delete-group" | "set-broker-settings":
            return _of_brokers(asked)
        case "recall-message" | "resume-checks" | "set-consume-mode":
            return _of_waiting(asked)
    raise InvalidChange(f"action: found {asked.get('action')!r}, expected one of {', '.join(ACTIONS)}")


def _of_offsets(asked: QueryParams) -> Change:
    """Return the change of single offsets. InvalidChange."""
    group, topic = asked.get("group", "").strip(), asked.get("topic", "").strip()
    if asked.get("action") == "clone-offsets":
        return CloneOffsets(source=asked.get("source", "").strip(), group=group, topic=topic)
    text = asked.get("offset", "").strip()
    offset = number_of(text)
    if offset is None:
        raise InvalidChange(f"offset: found {text[:80]!r}, expected a number")
    try:
        queue = MessageQueue.at(topic, asked.get("queue", "").strip())
    except IdError as error:
        raise InvalidChange(f"queue: {error}") from None
    return SetOffset(group=group, topic=topic, broker=queue.broker_name, queue_id=queue.queue_id, offset=offset)


def _of_waiting(asked: QueryParams) -> Change:
    """Return the change of what waits inside brokers. InvalidChange."""
    topic, broker = asked.get("topic", "").strip(), asked.get("broker", "").strip()
    match asked.get("action"):
        case "recall-message":
            due = asked.get("due", "")
            if not due.isdecimal():
                raise InvalidChange(f"due: found {due!r}, expected a time in ms")
            return RecallMessage(topic=topic, broker=broker, msg_id=asked.get("id", "").strip(), due_ms=int(due[:15]))
        case "resume-checks":
            return ResumeChecks(places=tuple(asked.get("places", "").split()))
    mode, share = asked.get("mode", ""), asked.get("share", "")
    if mode not in ("PULL", "POP") or not share.isdecimal():
        raise InvalidChange(f"found mode {mode!r} and {share!r} shared queues, expected PULL or POP, and a number")
    chosen: Literal["PULL", "POP"] = "POP" if mode == "POP" else "PULL"
    return SetConsumeMode(
        group=asked.get("group", "").strip(), topic=topic, mode=chosen, share_count=int(share[:9]), broker=broker
    )


def _of_brokers(asked: QueryParams) -> Change:
    """Return the change of a topic, of a group or of a broker's setting. InvalidChange."""
    topic, broker = asked.get("topic", "").strip(), asked.get("broker", "").strip()
    match asked.get("action"):
        case "set-topic":
            counts = [asked.get(name, "") for name in ("read_queues", "write_queues")]
            letters = asked.get("permission", "rw")
            if letters not in ("r", "w", "rw") or not all(one.isdecimal() for one in counts):
                raise InvalidChange(
                    f"found permission {letters!r} and queues {counts}, expected r, w or rw, and numbers"
                )
            read, write = (int(one[:9]) for one in counts)
            permission: Literal["r", "w", "rw"] = "r" if letters == "r" else "w" if letters == "w" else "rw"
            return SetTopic(
                topic=topic, read_queue_count=read, write_queue_count=write, permission=permission, broker=broker
            )
        case "delete-topic":
            return DeleteTopic(topic=topic)
        case "set-group":
            retries = asked.get("retries", "")
            if not retries.isdecimal():
                raise InvalidChange(f"found {retries!r} retries, expected a number")
            return SetGroup(
                group=asked.get("group", "").strip(),
                retry_count_max=int(retries[:9]),
                is_consume_enabled="enabled" in asked,
                broker=broker,
            )
        case "delete-group":
            return DeleteGroup(group=asked.get("group", ""))
    return SetBrokerSettings(settings={asked.get("setting", "").strip(): asked.get("value", "")}, broker=broker)


async def _matching(desk: Desk, asked: QueryParams) -> list[str]:
    """Return the ids of the lake's dead letters that match the address, the latest first."""
    wanted = DeadLetterConditions(
        group_name=asked.get("group", ""),
        topic=asked.get("topic", ""),
        error=asked.get("error"),
        limit=LETTERS_MAX,
    )
    answer = await desk.workers.run(lambda: desk.sources.of_lake().dead_letters(wanted, now_ms()))
    found = list(dict.fromkeys(one.msg_id for one in answer.letters))
    if not found:
        raise InvalidChange("found no dead letter that matches, expected some: nothing to send again")
    return found


def _members(reader: PageReader, asked: QueryParams, answer: MembersAnswer) -> None:
    """Draw the members of a group: one of them consumes the message."""
    bounds(reader, answer.scope, is_open=True)
    if not answer.members:
        tag("p", reader.say("no_members"))
        return
    tag("p", reader.say("choose_member"))
    with tag("ul"):
        for one in answer.members:
            with tag("li"):
                link(one.client_id, PATH, **{**asked, "client": one.client_id})


def draw_plan(reader: PageReader, plan: ChangePlan) -> None:
    """Draw what a change would do."""
    bounds(reader, plan.scope, is_open=True)
    counted = [name for name in COUNTS if any(name in step.counts for step in plan.steps)]
    headings = [reader.say(name) for name in ("part_of_change", "before", "afterwards", *counted)]
    with table(headings, reader.say("plan")) as add:
        for step in plan.steps[:ROWS_MAX]:
            numbers = [count(step.counts.get(name)) for name in counted]
            add([step.target, "–" if step.before is None else step.before, step.after, *numbers])
    for name in counted:
        tag("p", f"{reader.say(name)}: {count(plan.total(name))}")
    for warning in plan.warnings:
        tag("p", f"{MARKS['warning']} {warning}")
    tag("p", f"{reader.say('requests')}: {', '.join(plan.requests)}", "quiet")
    if plan.command:
        commands(reader, plan.command)


class Doing:
    """A change that a reader asked for."""

    def __init__(self, desk: Desk, changing: Changing, reader: PageReader, wanted: Change, actor: Actor) -> None:
        self.desk = desk
        self.changing = changing
        self.reader = reader
        self.wanted = wanted
        self.actor = actor


async def perform(doing: Doing, plan: ChangePlan, place: ui.element) -> None:
    """Do it, show how far it is, then what came of each part."""
    reader = doing.reader
    outcomes: list[ChangeOutcome] = []
    with place:
        progress = tag("p", reader.say("changing", done=0, all=len(plan.steps)), role="status")
        timer = ui.timer(
            PROGRESS_S, lambda: progress.set_text(reader.say("changing", done=len(outcomes), all=len(plan.steps)))
        )
    try:
        result = await doing.changing.perform(doing.wanted, doing.desk.sources, doing.actor, plan.basis, outcomes)
    except Problem as problem:
        with place, tag("div", classes="problem", role="alert"):
            tag("p", problem.detail)
        result = None
    finally:
        timer.cancel()
        progress.set_visibility(False)
    with place, section(reader.say("outcomes")):
        _outcomes(reader, outcomes)
        with tag("p"):
            link(reader.say("audit_log"), "/audit")
    resent = [one.target for one in outcomes if one.fate is Fate.DONE]
    if result is not None and resent and isinstance(doing.wanted, ResendDeadLetters | ResendMessage | ResendEdited):
        await _follow(doing, doing.wanted.group, resent[:FOLLOWED_MAX], place)


def _outcomes(reader: PageReader, outcomes: Sequence[ChangeOutcome]) -> None:
    headings = [reader.say(name) for name in ("part_of_change", "outcome", "detail", "where")]
    with table(headings, reader.say("outcomes")) as add:
        for one in outcomes[:ROWS_MAX]:
            add([one.target, f"{MARKS[FATES[one.fate]]} {reader.say(one.fate.value)}", one.detail, one.place])


async def _follow(doing: Doing, group: str, msg_ids: Sequence[str], place: ui.element) -> None:
    """Show the verdicts of what was sent again, and load them again while the page is live."""
    reader, desk = doing.reader, doing.desk
    with place, section(reader.say("follow")):
        live = ui.switch(reader.say("live"), value=True)
        part = PagePart(desk, reader)

    def ask() -> list[TraceAnswer]:
        answers = desk.sources.answers()
        return [answers.trace(msg_id, now_ms()) for msg_id in msg_ids]

    async def load() -> None:
        if live.value:
            await part.show(ask, partial(_verdicts, reader, group, msg_ids))

    with place:
        ui.timer(FOLLOW_S, load, immediate=False)
    await asyncio.gather(load())


def _verdicts(reader: PageReader, group: str, msg_ids: Sequence[str], answers: Sequence[TraceAnswer]) -> None:
    bounds(reader, answers[0].scope)
    with table([reader.say(name) for name in ("id", "verdicts", "why")], reader.say("follow")) as add:
        for msg_id, answer in zip(msg_ids, answers, strict=True):
            found = [one for known in answer.trajectories for one in known.groups if one.group_name == group]

            def name(msg_id: str = msg_id) -> None:
                link(msg_id, "/message", id=msg_id)

            said: Callable[[], None] | str = reader.say("unknown")
            if found:
                said = partial(codes, reader, [code for one in found for code in one.codes])
            why = "; ".join(reason for one in found for reason in one.reasons) or answer.why
            add([name, said, why])
