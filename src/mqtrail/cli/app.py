"""The commands by name. Their errors end with one line on standard error and an exit code, without a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import StringIO
from typing import Annotated

import typer

from mqtrail.wire import MQError

from .exits import Exit, SourceUnavailable, UsageError, missing_extra
from .imports import collector_paused
from .output import say, warn, warn_lines

# typer contains a copy of click under a name that depends on its version, so find ClickException by a public subclass.
_UsageProblem = typer.BadParameter.__mro__[2]
assert _UsageProblem.__name__ == "ClickException"

ROOMS = {
    "topic": "List, show, create, change and delete topics.",
    "group": "List, show, create, change and delete consumer groups.",
    "offset": "Show and change the consumer offsets of a group.",
    "cluster": "Inspect, configure and maintain brokers and name servers.",
    "message": "Find and print messages, consume one again, resend dead letters.",
    "transaction": "Find transactions without an end, and have brokers ask about them again.",
    "acl": "Manage access control: users and policies (5.x), accounts (4.9).",
    "acl user": "Manage users (brokers 5.x).",
    "acl policy": "Manage policies: the actions that each user may perform (brokers 5.x).",
    "acl account": "Manage accounts in the ACL files of 4.9.",
    "alerts": "Watch rules over lake and cluster, and send alerts.",
    "console": "Serve web pages and the HTTP API.",
    "console user": "Manage the users of a console.",
    "console token": "Manage the API tokens of a console's users.",
    "incidents": "Find the causes of bad messages in a lake.",
    "binlog": "Send the changes of a MariaDB server as messages.",
    "migrate": "Move topics and groups from Kafka to RocketMQ.",
    "mirror": "Copy messages and offsets from one RocketMQ cluster to another.",
    "backlog": "Find out why a group has a backlog, and resolve it.",
    "lag": "Show the lag of consumer groups, in messages and in time.",
    "pmq": "Run and operate queues as tables of a database, with an HTTP door.",
    "pmq topic": "List, show, create, change and delete topics over HTTP.",
    "pmq queue": "List queues and their tables.",
    "pmq group": "List, show, create, pause, resume and delete consumer groups over HTTP.",
    "pmq offset": "Move the offsets of a consumer group over HTTP.",
    "pmq subscription": "List which group consumes which topic.",
    "pmq node": "Show the broker and its databases, and change the state of a database.",
    "pmq message": "List, show and send messages, resend dead letters over HTTP.",
    "pmq member": "List the clients that are online.",
    "pmq failure": "List where failed messages are.",
    "pmq report": "Show sizes and rates of topics, queues and databases.",
    "reconcile": "Find out whether a copy of data agrees with its source.",
    "pipeline": "Compute trajectories and verdicts from a cluster's trace (PySpark).",
}
COMMANDS = {
    "up": "up:up",
    "controller": "controller:controller",
    "send": "queue:send",
    "consume": "queue:consume",
    "load": "load:load",
    "trace": "answers:trace",
    "search": "answers:search",
    "report": "answers:report",
    "prove": "prove:prove",
    "export": "answers:export",
    "sql": "sql:sql",
    "spans": "spans:spans",
    "incidents": "incidents:incidents",
    "incidents list": "incidents:incidents",
    "incidents show": "incidents:incidents_show",
    "incidents ack": "incident_acts:incidents_ack",
    "incidents reopen": "incident_acts:incidents_reopen",
    "incidents mute": "incident_acts:incidents_mute",
    "incidents unmute": "incident_acts:incidents_unmute",
    "latency": "latency:latency",
    "clocks": "clocks:clocks",
    "rejects": "rejects:rejects",
    "dead-letters": "dead_letters:dead_letters",
    "binlog run": "binlog:binlog_run",
    "binlog status": "binlog:binlog_status",
    "migrate bridge": "migrate:migrate_bridge",
    "migrate offsets": "migrate:migrate_offsets",
    "migrate compare": "migrate_check:migrate_compare",
    "migrate results": "migrate_check:migrate_results",
    "migrate gate": "migrate_check:migrate_gate",
    "migrate status": "migrate:migrate_status",
    "migrate back": "migrate_back:migrate_back",
    "migrate copies": "migrate_copies:migrate_copies",
    "mirror run": "mirror:mirror_run",
    "mirror offsets": "mirror:mirror_offsets",
    "mirror status": "mirror:mirror_status",
    "backlog show": "backlog:backlog_show",
    "backlog reshard": "reshard:backlog_reshard",
    "backlog skip": "backlog:backlog_skip",
    "backlog skipped": "backlog:backlog_skipped",
    "lag": "lag:lag",
    "lag show": "lag:lag_show",
    "doctor": "answers:doctor",
    "console": "console:console",
    "console user add": "console_users:user_add",
    "console user list": "console_users:user_list",
    "console user role": "console_users:user_role",
    "console user password": "console_users:user_password",
    "console user remove": "console_users:user_remove",
    "console token add": "console_users:token_add",
    "console token remove": "console_users:token_remove",
    "alerts run": "alerts:alerts_run",
    "alerts list": "alerts:alerts_list",
    "alerts test": "alerts:alerts_test",
    "audit": "audit:audit",
    "mcp": "mcp:mcp",
    "topic list": "topics:topic_list",
    "topic create": "topics:topic_create",
    "topic show": "topics:topic_show",
    "topic route": "topics:topic_route",
    "topic stats": "topics:topic_stats",
    "topic perm": "topics:topic_perm",
    "topic order": "topics:topic_order",
    "topic delete": "topics:topic_delete",
    "topic clean": "topics:topic_clean",
    "group list": "groups:group_list",
    "group show": "groups:group_show",
    "group members": "groups:group_members",
    "group config": "groups:group_config",
    "group create": "groups:group_create",
    "group delete": "groups:group_delete",
    "group mode": "groups:group_mode",
    "group producers": "groups:producer_list",
    "group pops": "waiting:group_pops",
    "offset show": "offsets:offset_show",
    "offset reset": "offsets:offset_reset",
    "offset skip": "offsets:offset_skip",
    "offset set": "offsets:offset_set",
    "offset clone": "offsets:offset_clone",
    "cluster list": "clusters:cluster_list",
    "cluster show": "clusters:cluster_show",
    "cluster ha": "replicas:cluster_ha",
    "cluster transfer": "replicas:cluster_transfer",
    "cluster elect": "replicas:cluster_elect",
    "cluster restart": "maintenance:cluster_restart",
    "cluster drain": "maintenance:cluster_drain",
    "cluster config": "clusters:cluster_config",
    "cluster stats": "clusters:cluster_stats",
    "cluster ping": "clusters:cluster_ping",
    "cluster export": "clusters:cluster_export",
    "cluster import": "cluster_import:cluster_import",
    "cluster wipe": "clusters:cluster_wipe",
    "cluster unwipe": "clusters:cluster_unwipe",
    "cluster clean": "clusters:cluster_clean",
    "cluster namesrv": "clusters:cluster_namesrv",
    "cluster kv": "clusters:cluster_kv",
    "message show": "messages:message_show",
    "message find": "messages:message_find",
    "message print": "messages:message_print",
    "message index": "messages:message_index",
    "message consume": "messages:message_consume",
    "message delayed": "waiting:message_delayed",
    "message recall": "messages:message_recall",
    "message resend": "messages:message_resend",
    "transaction list": "waiting:transaction_list",
    "transaction resume": "waiting:transaction_resume",
    "acl user list": "acl:user_list",
    "acl user create": "acl:user_create",
    "acl user update": "acl:user_update",
    "acl user delete": "acl:user_delete",
    "acl policy list": "acl:policy_list",
    "acl policy set": "acl:policy_set",
    "acl policy delete": "acl:policy_delete",
    "acl account set": "acl:account_set",
    "acl account delete": "acl:account_delete",
    "acl account white": "acl:account_white",
    "acl account version": "acl:account_version",
    "pipeline once": "ingest:once",
    "pipeline run": "ingest:run",
    "pipeline backfill": "backfill:backfill",
    "pipeline status": "ingest:status",
    "pipeline migrate": "ingest:migrate",
    "pipeline rebuild": "ingest:rebuild",
    "pipeline table": "tables:pipeline_table",
    "pmq topic list": "pmq_look:topic_list",
    "pmq topic show": "pmq_look:topic_show",
    "pmq topic create": "pmq_change:topic_create",
    "pmq topic shrink": "pmq_change:topic_shrink",
    "pmq topic perm": "pmq_change:topic_perm",
    "pmq topic delete": "pmq_change:topic_delete",
    "pmq queue list": "pmq_look:queue_list",
    "pmq queue free": "pmq_change:queue_free",
    "pmq queue move": "pmq_change:queue_move",
    "pmq group list": "pmq_look:group_list",
    "pmq group show": "pmq_look:group_show",
    "pmq group create": "pmq_change:group_create",
    "pmq group pause": "pmq_change:group_pause",
    "pmq group resume": "pmq_change:group_resume",
    "pmq group delete": "pmq_change:group_delete",
    "pmq offset set": "pmq_change:offset_set",
    "pmq subscription list": "pmq_look:subscription_list",
    "pmq message list": "pmq_look:message_list",
    "pmq message show": "pmq_look:message_show",
    "pmq message resend": "pmq_change:message_resend",
    "pmq node": "pmq_look:node",
    "pmq node list": "pmq_look:node_list",
    "pmq node set": "pmq_look:node_set",
    "pmq message send": "pmq_change:message_send",
    "pmq topic count": "pmq_report:topic_count",
    "pmq backlog": "pmq_report:backlog",
    "pmq member list": "pmq_report:member_list",
    "pmq failure list": "pmq_report:failure_list",
    "pmq rules": "pmq_report:rules",
    "pmq report topics": "pmq_report:report_topics",
    "pmq report queues": "pmq_report:report_queues",
    "pmq report nodes": "pmq_report:report_nodes",
    "pmq lock": "pmq_look:lock",
    "pmq audit": "pmq_change:audit",
    "pmq token": "pmq:pmq_token",
    "pmq up": "pmq:pmq_up",
    "reconcile table": "tables:reconcile_table",
    "sample": "ingest:sample",
    "demo": "demo:demo",
}
"""Command -> module of this room and its function. A command that is also in ROOMS runs without a subcommand."""
LOOK_UPS = (
    "trace",
    "search",
    "report",
    "prove",
    "export",
    "incidents",
    "dead-letters",
    "latency",
    "clocks",
    "rejects",
    "lag",
    "reconcile",
)
"""Commands whose exit code 1 means "not found": a failure has another."""
FIRST_WORDS = {path.split(" ")[0] for path in COMMANDS}


def build(first: str | None = None) -> typer.Typer:
    """Return the program with all commands, or only those whose first word is `first`, without importing the others."""
    app = typer.Typer(
        name="mqtrail",
        help="A RocketMQ-compatible message queue with a complete trace of every message.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: keeps brackets, works in pipes and dumb terminals, starts faster
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    rooms = {"": app}
    for path, where in COMMANDS.items():
        *within, name = path.split(" ")
        if first is not None and path.split(" ")[0] != first:
            continue
        module, _, function = where.partition(":")
        command = getattr(import_module(f"mqtrail.cli.{module}"), function)
        if path in ROOMS:
            _room_of(rooms, [*within, name]).callback(invoke_without_command=True)(command)
        else:
            _room_of(rooms, within).command(name)(command)
    return app


def _room_of(rooms: dict[str, typer.Typer], within: Sequence[str]) -> typer.Typer:
    """Return the command group of a path; create it and its parents if needed."""
    path = " ".join(within)
    if path not in rooms:
        is_command = path in COMMANDS
        rooms[path] = typer.Typer(help=ROOMS[path], no_args_is_help=not is_command, rich_markup_mode=None)
        _room_of(rooms, within[:-1]).add_typer(rooms[path], name=within[-1])
    return rooms[path]


def _version(wanted: bool) -> None:
    if wanted:
        from mqtrail import __version__

        say(f"mqtrail {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the program itself."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (sys.argv where None) and return its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with collector_paused():
            app = build(words[0] if words and words[0] in FIRST_WORDS else None)
        code = app(args=words, prog_name="mqtrail", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        warn("interrupted")
        return Exit.INTERRUPTED
    except UsageError as error:
        warn(str(error))
        return Exit.USAGE
    except SourceUnavailable as error:
        warn(str(error))
        return Exit.CANNOT_LOOK
    except MQError as error:
        warn(str(error))
        return Exit.FAILED
    except BrokenPipeError:  # `mqtrail export | head`: the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit does not fail
        return Exit.OK
    except OSError as error:  # a folder in a file's place, no permission, a full disk
        warn(f"{error}: check that file or folder, its permissions and the space on its disk")
        return Exit.CANNOT_LOOK if words[0] in LOOK_UPS else Exit.FAILED
    except ModuleNotFoundError as error:
        text = missing_extra(error)
        if text is None:
            raise
        warn(text)
        return Exit.USAGE
    except Exception as error:
        if not isinstance(error, _UsageProblem):
            raise
        shown = StringIO()
        error.show(shown)  # type: ignore[attr-defined]  # mypy does not follow the line of __mro__
        warn_lines(shown.getvalue())
        return Exit.USAGE
    return int(code or 0)


def main() -> None:
    """The program."""
    with collector_paused():
        from mqtrail.net import guard_stderr

    guard_stderr()
    sys.exit(run())
