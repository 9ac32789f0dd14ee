"""`pmq backlog|failure|rules|report` and `pmq topic count`: what an operator sees of all topics and groups at once."""

from __future__ import annotations

from typing import Annotated

import typer

from mqtrail.pmq import operating

from .exits import Exit
from .options import Json, moment_ms
from .output import say, show_json
from .pmq_door import CaFile, DoorUrl, TokenFile, door_at
from .pmq_look import OnlyGroup, OnlyTopic, TopicName, draw_lines, draw_rows, show_rows


def backlog(url: DoorUrl = None, token_file: TokenFile = None, ca: CaFile = None, json: Json = False) -> int:
    """List stored, consumed and pending messages of each group and topic; unknown numbers first, then the most."""
    found = operating.backlog(door_at(url, token_file, ca))
    return show_rows(found, found.rows("backlog"), json)


def member_list(
    group: OnlyGroup = None,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """List the clients of groups that are online: address, interface, version, last heartbeat."""
    found = operating.members(door_at(url, token_file, ca), group)
    return show_rows(found, found.rows("members"), json)


def failure_list(url: DoorUrl = None, token_file: TokenFile = None, ca: CaFile = None, json: Json = False) -> int:
    """List where failed messages are: dead letters of groups, and failure topics of pmq's own clients."""
    found = operating.failures(door_at(url, token_file, ca))
    return show_rows(found, found.rows("failures"), json)


def rules(url: DoorUrl = None, token_file: TokenFile = None, ca: CaFile = None, json: Json = False) -> int:
    """Show the operator of the token with its role, and owners, limits and addresses of topics and groups.

    They are in the file of --rules. The answer has the number of tokens, no token.
    """
    found = operating.rules(door_at(url, token_file, ca))
    if json:
        show_json(found)
        return Exit.OK
    tables = ("topics", "groups", "operators")
    draw_lines({name: value for name, value in found.items() if name not in tables})
    for name in tables:
        draw_rows(found.rows(name), name)
    return Exit.OK


def topic_count(
    topic: TopicName,
    since: Annotated[str, typer.Option("--from", help="Stored at or after this time (UTC), or an age such as 2h.")],
    until: Annotated[str, typer.Option("--to", help="Stored before this time (UTC), or an age. [default: now]")] = "",
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """Count the messages of a topic that were stored between two times and are kept."""
    from mqtrail.clock import now_ms

    at_ms = now_ms()
    until_ms = moment_ms(until, at_ms, "--to") if until else at_ms
    found = operating.message_count(door_at(url, token_file, ca), topic, moment_ms(since, at_ms, "--from"), until_ms)
    if json:
        show_json(found)
    else:
        draw_lines(found)
    return Exit.OK


def report_queues(
    topic: OnlyTopic = None,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """List queues with table, bytes, first and last message, and messages a day, the most messages first."""
    found = operating.queue_report(door_at(url, token_file, ca), topic)
    return show_rows(found, found.rows("queues"), json)


def report_topics(url: DoorUrl = None, token_file: TokenFile = None, ca: CaFile = None, json: Json = False) -> int:
    """List topics with messages a day and advice: expand above 1,000,000 a day and queue, shrink below 500,000."""
    found = operating.topic_report(door_at(url, token_file, ca))
    return show_rows(found, found.rows("topics"), json)


def report_nodes(url: DoorUrl = None, token_file: TokenFile = None, ca: CaFile = None, json: Json = False) -> int:
    """List the databases of the store with queues, topics, messages, bytes and messages a day."""
    found = operating.node_report(door_at(url, token_file, ca))
    if not json and not found.rows("nodes"):
        say("no queue has a table yet")
        return Exit.OK
    return show_rows(found, found.rows("nodes"), json)
