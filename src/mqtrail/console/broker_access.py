"""The access control of the brokers: users, and what each subject may do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nicegui import ui

from mqtrail.answers import BrokerAccessAnswer

from .frame import MARKS, Desk, PagePart, PageReader, bounds, commands, frame, lacks_cluster, section, table, tag


async def broker_access(desk: Desk, reader: PageReader) -> None:
    """Draw users and policies of all masters."""
    with frame(reader, reader.say("broker_access")):
        if lacks_cluster(desk, reader):
            return
        tag("p", reader.say("broker_access_text"))
        part = PagePart(desk, reader)
        commands(reader, ["mqtrail", "acl", "policy", "list", "--namesrv", desk.sources.namesrv], "/broker-access")
    cluster = desk.sources.of_cluster()
    await ui.context.client.connected()
    await part.show(cluster.broker_access, partial(_draw, reader))


def _draw(reader: PageReader, answer: BrokerAccessAnswer) -> None:
    bounds(reader, answer.scope, is_open=True)

    def on(brokers: Sequence[str]) -> str:
        """Name the brokers; those that lack the row are marked: a policy that is on some of them alone is a trap."""
        words = ", ".join(brokers)
        missing = [one for one in answer.masters if one not in brokers]
        return f"{MARKS['warning']} {words} ({reader.say('not_on', names=', '.join(missing))})" if missing else words

    with section(reader.say("users")):
        if answer.users:
            headings = [reader.say(name) for name in ("user_name", "kind", "state", "brokers")]
            with table(headings, reader.say("users")) as add:
                for user in answer.users:
                    add([user.name, user.kind, user.status, on(user.brokers)])
        else:
            tag("p", reader.say("no_users"))
    with section(reader.say("policies")):
        if answer.policies:
            names = ("subject", "decision", "resource", "actions", "source_ips", "kind", "brokers")
            with table([reader.say(name) for name in names], reader.say("policies")) as add:
                for one in answer.policies:
                    sources = ", ".join(one.source_ips) or reader.say("everywhere")
                    row = [one.subject, one.decision, one.resource, ", ".join(one.actions), sources, one.kind]
                    add([*row, on(one.brokers)])
        else:
            tag("p", reader.say("no_policies"))
