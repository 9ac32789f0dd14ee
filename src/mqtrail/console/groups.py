"""Groups and lag: what waits in each group, and of one group its queues, messages and members."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from nicegui import ui

from mqtrail.answers import GroupWait, LagAnswer, MembersAnswer, number_text
from mqtrail.answers.changes import RETRIES_MAX
from mqtrail.client import GroupLag, TrendState

from .frame import MARKS, Desk, PagePart, PageReader, bounds, frame, keep_live, lacks_cluster, link, section, table, tag
from .looks import count, duration

ROWS_MAX: Final = 500
TREND_MS: Final = 5_000
SKIPS_MAX: Final = 20  # topics of a group with a button


async def groups(desk: Desk, reader: PageReader) -> None:
    """Draw what waits in all groups, and load it again while the page is live."""
    with frame(reader, reader.say("groups")):
        if lacks_cluster(desk, reader):
            return
        live = ui.switch(reader.say("live"), value=True)
        part = PagePart(desk, reader)

    def draw(answer: LagAnswer) -> None:
        bounds(reader, answer.scope, is_open=True)
        draw_waits(reader, answer, rows_max=ROWS_MAX)

    cluster = desk.sources.of_cluster()
    await keep_live(live, lambda: part.show(lambda: cluster.overview().lag(), draw))


def draw_waits(reader: PageReader, answer: LagAnswer, *, rows_max: int) -> None:
    """Draw a row for each group, the longest wait first."""
    if not answer.waits:
        tag("p", reader.say("no_lag"))
        return
    names = ("group", "waiting", "waits_for", "members", "why")
    with table([reader.say(name) for name in names], reader.say("groups")) as add:
        for wait, lag in list(zip(answer.waits, answer.lag.groups, strict=True))[:rows_max]:

            def name(wait: GroupWait = wait) -> None:
                link(wait.group_name, "/group", name=wait.group_name)

            waiting = count(wait.lag_count, is_lower_bound=wait.is_lower_bound)
            waits_for = duration(wait.lag_ms)
            if wait.is_lower_bound and wait.lag_ms is not None:
                waits_for = f"≥ {waits_for}"
            add([name, waiting, waits_for, count(lag.member_count), "; ".join(lag.why)])
    if len(answer.waits) > rows_max:
        tag("p", f"+ {len(answer.waits) - rows_max}", "quiet")


async def group(desk: Desk, reader: PageReader, name: str) -> None:
    """Draw one group: queues, the messages that have waited longest, members; load them again while it is live."""
    with frame(reader, f"{reader.say('group')} {name}"):
        if lacks_cluster(desk, reader):
            return
        with tag("div", classes="tools"):
            link(reader.say("search"), "/search", "button", q=f'group:"{name}"')
            measure = tag("button", reader.say("trend_button"), type="button")
        live = ui.switch(reader.say("live"), value=True)
        with section(reader.say("queues")):
            lag = PagePart(desk, reader)
        with section(reader.say("members")):
            members = PagePart(desk, reader)
        if desk.changing is not None:
            with section(reader.say("reset-offsets")):
                _reset(reader, name)
            with section(reader.say("clone-offsets")):
                _form_of(reader, "clone-offsets", name, ("source", "120"), ("topic", "255"))
            with section(reader.say("set-offset")):
                _form_of(reader, "set-offset", name, ("topic", "255"), ("queue", "280"), ("offset", "18"))
        if desk.can_administer:
            with section(reader.say("set-group")):
                group_form(reader, name)
            with section(reader.say("delete-group")):
                link(f"{reader.say('delete-group')} …", "/change", "button", action="delete-group", group=name)
    cluster = desk.sources.of_cluster()

    async def load(over_ms: int | None = None) -> None:
        await asyncio.gather(
            lag.show(
                partial(cluster.lag, name, over_ms), partial(_lag_of_group, reader, name, desk.changing is not None)
            ),
            members.show(partial(cluster.members, name), partial(_members, reader)),
        )

    async def measured() -> None:
        live.value = False  # else the next refresh replaces the trend
        await load(TREND_MS)

    measure.on("click", measured)
    await keep_live(live, load)


def _reset(reader: PageReader, name: str) -> None:
    """Draw a form that leads to the plan of a reset."""
    with tag("form", classes="tools", action="/change", method="get"):
        for field, value in (("action", "reset-offsets"), ("group", name)):
            tag("input", type="hidden", name=field, value=value)
        for field, words, size in (("topic", reader.say("topic"), "255"), ("to", reader.say("to_time"), "64")):
            labels = {"aria-label": words, "required": ""}
            tag("input", name=field, maxlength=size, placeholder=words, **labels)
        with tag("label"):
            tag("input", type="checkbox", name="no_skip")
            tag("span", f" {reader.say('no_skip')}")
        tag("button", reader.say("plan_it"), type="submit")


def _form_of(reader: PageReader, action: str, group_name: str, *fields: tuple[str, str]) -> None:
    """Draw a form that leads to the plan of a change of offsets. fields: name and greatest size."""
    with tag("form", classes="tools", action="/change", method="get"):
        for field, value in (("action", action), ("group", group_name)):
            tag("input", type="hidden", name=field, value=value)
        for field, size in fields:
            words = reader.say(f"offset_{field}")
            tag("input", name=field, maxlength=size, required="", placeholder=words, **{"aria-label": words})
        tag("button", reader.say("plan_it"), type="submit")


def group_form(reader: PageReader, name: str = "") -> None:
    """Draw a form that leads to the plan: create a group, or change one."""
    with tag("form", classes="tools", action="/change", method="get"):
        tag("input", type="hidden", name="action", value="set-group")
        words = reader.say("group")
        tag("input", name="group", value=name, maxlength="120", required="", placeholder=words, **{"aria-label": words})
        with tag("label"):
            tag("span", f"{reader.say('retries')} ")
            tag("input", type="number", name="retries", value="16", min="0", max=str(RETRIES_MAX), required="")
        with tag("label"):
            tag("input", type="checkbox", name="enabled", checked="")
            tag("span", f" {reader.say('may_consume')}")
        words = reader.say("on_broker")
        tag("input", name="broker", maxlength="255", placeholder=words, **{"aria-label": words})
        tag("button", reader.say("plan_it"), type="submit")


def _lag_of_group(reader: PageReader, name: str, may_change: bool, answer: LagAnswer) -> None:
    bounds(reader, answer.scope, is_open=True)
    if (copies := answer.copies) is not None:
        with tag("p"):
            tag("span", f"{reader.say('retry_copies')}: {count(copies.retry_count)} · ")
            words = f"{reader.say('dead_letters')}: {count(copies.dead_letter_count)}"
            link(words, "/dead-letters", group=name)
    for one in answer.lag.groups:
        if one.trend.state is not TrendState.UNKNOWN:
            tag("p", f"{reader.say('trend')}: {trend(reader, one)}")
        for why in one.why:
            tag("p", f"{MARKS['warning']} {why}")
        names = ("topic", "queue", "consumer_offset", "max_offset", "waiting", "waits_for", "why")
        with table([reader.say(name) for name in names], reader.say("queues")) as add:
            for queue in one.queues[:ROWS_MAX]:
                place = f"{queue.broker_name}/{queue.queue_id}"
                offsets = (count(queue.consumer_offset), count(queue.max_offset))
                add([queue.topic, place, *offsets, count(queue.lag_count), duration(queue.lag_ms), queue.why])
        if may_change:
            _skips(reader, one)
    tag("h2", reader.say("oldest"))
    if not answer.lag.oldest:
        tag("p", reader.say("no_waiting"))
        return
    headings = [reader.say(one) for one in ("id", "keys", "topic", "where", "sent", "waits_for")]
    with table(headings, reader.say("oldest")) as add:
        for message in answer.lag.oldest:

            def msg_id(message: Any = message) -> None:
                link(message.msg_id, "/message", id=message.msg_id)

            place = f"{message.broker_name}/{message.queue_id}@{message.queue_offset}"
            add([msg_id, message.keys, message.topic, place, reader.at(message.store_ms), duration(message.lag_ms)])


def _skips(reader: PageReader, one: GroupLag) -> None:
    """Draw for each topic what leads to the plan of skipping all that waits."""
    topics = sorted({queue.topic for queue in one.queues if queue.waits or queue.lag_count is None})
    with tag("div", classes="tools"):
        for topic in topics[:SKIPS_MAX]:
            asked = {"action": "reset-offsets", "group": one.group_name, "topic": topic, "to": "end"}
            link(f"{reader.say('skip_backlog', topic=topic)} …", "/change", "button", **asked)


def trend(reader: PageReader, one: GroupLag) -> str:
    """Return the trend of a group in words, with its rates."""
    found = one.trend
    drain = duration(None if found.drain_s is None else found.drain_s * 1000)
    rates = [f"{number_text(rate)}/s" for rate in (found.consumed_per_s, found.produced_per_s) if rate is not None]
    words = reader.say(found.state.value, drain=drain)
    return f"{words} ({' ← '.join(rates)})" if rates else words


def _members(reader: PageReader, answer: MembersAnswer) -> None:
    bounds(reader, answer.scope, is_open=True)
    if answer.differing:
        tag("p", f"{MARKS['warning']} {reader.say('differing', topics=', '.join(answer.differing))}", "problem")
    if not answer.members:
        tag("p", reader.say("no_members"))
        return
    names = ("client", "address", "client_language", "version", "subscriptions")
    with table([reader.say(name) for name in names], reader.say("members")) as add:
        for one in answer.members:
            known = "; ".join(f"{topic}: {expression}" for topic, expression in (one.subscriptions or {}).items())
            subscribed = reader.say("does_not_answer", why=one.why) if one.subscriptions is None else known
            client = partial(link, one.client_id, "/client", group=answer.group_name, id=one.client_id)
            add([client, one.address, one.language, one.version, subscribed])
