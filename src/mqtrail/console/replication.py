"""Replication: how far each broker is behind its master, who was elected last, and who was master when."""

from __future__ import annotations

from functools import partial
from typing import Final

from nicegui import ui

from mqtrail.answers import ELECTION_REASONS, BrokerChanges, ReplicationAnswer, named_broker
from mqtrail.clock import now_ms

from .frame import MARKS, Desk, PagePart, PageReader, bounds, commands, frame, lacks_cluster, section, table, tag
from .looks import UNKNOWN, count, duration
from .message import change_words
from .texts import TEXTS

NOT_APPLICABLE: Final = "–"


async def replication(desk: Desk, reader: PageReader) -> None:
    """Draw the brokers of each group, and the groups of controllers."""
    with frame(reader, reader.say("replication")):
        if lacks_cluster(desk, reader):
            return
        tag("p", reader.say("replication_text"))
        part = PagePart(desk, reader)
        commands(reader, ["mqtrail", "cluster", "ha", "--namesrv", desk.sources.namesrv], "/replication")
        events = None
        if desk.sources.lake is not None:
            with section(reader.say("broker_changes")):
                tag("p", reader.say("broker_changes_text"))
                events = PagePart(desk, reader)
    cluster = desk.sources.of_cluster()
    await ui.context.client.connected()
    await part.show(cluster.replication, partial(_draw, reader))
    if events is not None:
        lake = desk.sources.of_lake
        await events.show(lambda: lake().broker_changes(now_ms()), partial(_events, reader))


def _events(reader: PageReader, answer: BrokerChanges) -> None:
    """Draw the starts, stops and changes of the role that the lake has, the latest first."""
    bounds(reader, answer.scope)
    if not answer.changes:
        tag("p", reader.say("no_broker_changes"))
        return
    names = ("time", "broker", "event", "address", "detail")
    with table([reader.say(name) for name in names], reader.say("broker_changes")) as add:
        for one in answer.changes:
            event = reader.say(f"event_{one.event}") if f"event_{one.event}" in TEXTS else one.event
            address = named_broker(one.address, one.broker_id) or NOT_APPLICABLE
            add([reader.at(one.at_ms), one.broker, event, address, change_words(reader, one)])
    if answer.matched_count > len(answer.changes):
        tag("p", f"+ {answer.matched_count - len(answer.changes)}", "quiet")


def _draw(reader: PageReader, answer: ReplicationAnswer) -> None:
    bounds(reader, answer.scope, is_open=True)
    names = ("broker", "broker_id", "role", "address", "log_end", "behind_bytes", "behind_time", "epoch", "in_sync")
    with table([reader.say(name) for name in names], reader.say("replication")) as add:
        for one in answer.replicas:
            role = None if one.is_master is None else reader.say("master" if one.is_master else "slave")
            in_sync = UNKNOWN if one.is_in_sync is None else reader.say("yes" if one.is_in_sync else "no")
            is_classic = not one.why and one.epoch is None
            add(
                [
                    one.broker,
                    one.broker_id,
                    role or f"{MARKS['error']} {reader.say('does_not_answer', why=one.why)}",
                    one.address,
                    count(one.end_offset),
                    count(one.lag_bytes),
                    duration(one.lag_ms),
                    NOT_APPLICABLE if is_classic else count(one.epoch),
                    NOT_APPLICABLE if is_classic else in_sync,
                ]
            )
    if not answer.groups:
        tag("p", reader.say("no_controllers"))
        return
    headings = ("broker", "master", "epoch", "in_sync", "last_election", "reason", "master_before")
    with table([reader.say(name) for name in headings], reader.say("last_election")) as add:
        for group in answer.groups:
            is_known = group.reason in ELECTION_REASONS
            reason = reader.say(f"election_{group.reason}") if is_known else group.reason
            add(
                [
                    group.broker,
                    f"{MARKS['error']} {reader.say('no_master')}" if group.master_id is None else group.master_id,
                    group.epoch,
                    ", ".join(map(str, group.in_sync_ids)),
                    reader.at(group.elected_ms),
                    reason or reader.say("unknown"),
                    NOT_APPLICABLE if group.master_before is None else group.master_before,
                ]
            )
