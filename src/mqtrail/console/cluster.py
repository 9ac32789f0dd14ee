"""The cluster: its brokers with their counters, its topics with their queues, its consumer groups."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from nicegui import ui

from mqtrail.answers import BrokerRow, BrokersAnswer, GroupsAnswer, TopicRow, TopicsAnswer
from mqtrail.answers.access import Right
from mqtrail.wire import MASTER_ID

from .frame import MARKS, Desk, PagePart, PageReader, bounds, commands, frame, lacks_cluster, link, section, table, tag
from .groups import group_form
from .looks import count
from .topic import permission, topic_form

ROWS_MAX: Final = 500


async def cluster(desk: Desk, reader: PageReader) -> None:
    """Ask brokers, topics and groups at the same time. A part that fails shows its error."""
    with frame(reader, reader.say("cluster")):
        if lacks_cluster(desk, reader):
            return
        with tag("div", classes="tools"):
            for name, path in (
                ("delayed_page", "/delayed"),
                ("transactions", "/transactions"),
                ("pops", "/pops"),
                ("replication", "/replication"),
                ("name_servers", "/name-servers"),
                *([("broker_access", "/broker-access")] if Right.ADMINISTER in desk.rights else []),
            ):
                link(reader.say(name), path, "button")
            if desk.can_administer:
                link(reader.say("audit_log"), "/audit", "button")
        if desk.can_administer:
            with section(reader.say("set-topic")):
                topic_form(reader)
            with section(reader.say("set-group")):
                group_form(reader)
        parts: list[PagePart] = []
        for name, command, path in (
            ("brokers", "cluster list", "/brokers"),
            ("topics", "topic list", "/topics"),
            ("groups_configured", "group list", "/groups"),
        ):
            with section(reader.say(name)):
                parts.append(PagePart(desk, reader))
                commands(reader, ["mqtrail", *command.split(), "--namesrv", desk.sources.namesrv], path)
    asked = desk.sources.of_cluster()
    brokers, topics, groups = parts
    await ui.context.client.connected()
    await asyncio.gather(
        brokers.show(asked.brokers, partial(draw_brokers, reader)),
        topics.show(asked.topics, partial(_topics, reader)),
        groups.show(asked.groups, partial(_groups, reader)),
    )


def draw_brokers(reader: PageReader, answer: BrokersAnswer, *, has_counters: bool = True) -> None:
    """Draw a row for each broker, then the counters that each reports about itself."""
    bounds(reader, answer.scope, is_open=True)
    with table([reader.say(name) for name in ("broker", "address", "version", "state")], reader.say("brokers")) as add:
        for one in answer.brokers:
            mark = MARKS["good"] if one.counters is not None else MARKS["error"]
            state = reader.say("answers") if one.counters is not None else reader.say("does_not_answer", why=one.why)

            def process(one: BrokerRow = one) -> None:
                words = f"{one.cluster} / {one.name} / {one.broker_id}"
                if one.broker_id == MASTER_ID:
                    link(words, "/broker", name=one.name)
                else:
                    tag("span", words)

            add([process, one.address, one.version, f"{mark} {state}"])
    for one in answer.brokers:
        if has_counters and one.counters is not None:
            with tag("details"):
                name = f"{one.name} / {one.broker_id}"
                tag("summary", f"{reader.say('counters')}: {name}")
                with table([reader.say("counter"), reader.say("value")], name) as add:
                    for counter, value in sorted(one.counters.items()):
                        add([counter, value])


def _topics(reader: PageReader, answer: TopicsAnswer) -> None:
    bounds(reader, answer.scope, is_open=True)
    names = ("topic", "kind", "queues", "permission")
    business_first = sorted(answer.topics, key=lambda one: (not one.is_business, one.name))
    with table([reader.say(name) for name in names], reader.say("topics")) as add:
        for one in business_first[:ROWS_MAX]:

            def name(one: TopicRow = one) -> None:
                link(one.name, "/topic", name=one.name)

            kind = reader.say("of_application" if one.is_business else "of_system")
            queues = "; ".join(
                f"{at.broker_name}: {reader.say('queue_counts', read=at.read_queue_count, write=at.write_queue_count)}"
                for at in one.brokers
            )
            permissions = dict.fromkeys(permission(reader, at.perm) for at in one.brokers)
            add([name if one.is_business else one.name, kind, queues, "; ".join(permissions)])
    _rest(len(answer.topics))


def _groups(reader: PageReader, answer: GroupsAnswer) -> None:
    bounds(reader, answer.scope, is_open=True)
    names = ("group", "broker", "consumption", "retry_count_max")
    with table([reader.say(name) for name in names], reader.say("groups_configured")) as add:
        for one in answer.groups[:ROWS_MAX]:

            def name(one: Any = one) -> None:
                link(one.name, "/group", name=one.name)

            for at in one.brokers:
                state = reader.say("enabled" if at.is_consume_enabled else "disabled")
                mark = MARKS["good" if at.is_consume_enabled else "warning"]
                add([name, at.broker_name, f"{mark} {state}", count(at.retry_count_max)])
    _rest(len(answer.groups))


def _rest(number: int) -> None:
    if number > ROWS_MAX:
        tag("p", f"+ {number - ROWS_MAX}", "quiet")
