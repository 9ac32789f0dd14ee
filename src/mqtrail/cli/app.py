"""The commands by name, and how their errors end: one line on standard error and an exit code, never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from mqtrail.cli import acl, clusters, demo, groups, ingest, look, messages, offsets, queue, topics, up
from mqtrail.cli.exits import CannotLook, Exit, UsageError, missing_extra
from mqtrail.cli.output import warn
from mqtrail.wire import MQError

# typer brings click's exceptions under a name of its own, which differs by its version; these are their public ends.
_UsageProblem = typer.BadParameter.__mro__[2]
assert _UsageProblem.__name__ == "ClickException"

app = typer.Typer(
    name="mqtrail",
    help="A RocketMQ-compatible message queue that knows where every message went.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help as plain text: brackets stay, pipes and dumb terminals read it, and it starts sooner
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _room(help: str, within: typer.Typer, name: str) -> typer.Typer:
    """A command that only holds others."""
    made = typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None)
    within.add_typer(made, name=name)
    return made


app.command("up")(up.up)
app.command("send")(queue.send)
app.command("consume")(queue.consume)
app.command("trace")(look.trace)
app.command("search")(look.search)
app.command("report")(look.report)
app.command("export")(look.export)
app.command("doctor")(look.doctor)
topic_app = _room("Topics: list, show, create, change, delete.", app, "topic")
topic_app.command("list")(topics.topic_list)
topic_app.command("create")(topics.topic_create)
topic_app.command("show")(topics.topic_show)
topic_app.command("route")(topics.topic_route)
topic_app.command("stats")(topics.topic_stats)
topic_app.command("perm")(topics.topic_perm)
topic_app.command("order")(topics.topic_order)
topic_app.command("delete")(topics.topic_delete)
topic_app.command("clean")(topics.topic_clean)
group_app = _room("Consumer groups: how far they are, who is in them, how they are set up.", app, "group")
group_app.command("list")(groups.group_list)
group_app.command("show")(groups.group_show)
group_app.command("members")(groups.group_members)
group_app.command("config")(groups.group_config)
group_app.command("create")(groups.group_create)
group_app.command("delete")(groups.group_delete)
group_app.command("mode")(groups.group_mode)
group_app.command("producers")(groups.producer_list)
offset_app = _room("Offsets: where a group stands, and moving it.", app, "offset")
offset_app.command("show")(offsets.offset_show)
offset_app.command("reset")(offsets.offset_reset)
offset_app.command("skip")(offsets.offset_skip)
offset_app.command("set")(offsets.offset_set)
offset_app.command("clone")(offsets.offset_clone)
cluster_app = _room("Brokers and name servers: settings, counters, upkeep.", app, "cluster")
cluster_app.command("list")(clusters.cluster_list)
cluster_app.command("show")(clusters.cluster_show)
cluster_app.command("config")(clusters.cluster_config)
cluster_app.command("stats")(clusters.cluster_stats)
cluster_app.command("ping")(clusters.cluster_ping)
cluster_app.command("export")(clusters.cluster_export)
cluster_app.command("wipe")(clusters.cluster_wipe)
cluster_app.command("unwipe")(clusters.cluster_unwipe)
cluster_app.command("clean")(clusters.cluster_clean)
cluster_app.command("namesrv")(clusters.cluster_namesrv)
cluster_app.command("kv")(clusters.cluster_kv)
message_app = _room("Messages: find, print, consume by hand, put dead letters back.", app, "message")
message_app.command("show")(messages.message_show)
message_app.command("find")(messages.message_find)
message_app.command("print")(messages.message_print)
message_app.command("index")(messages.message_index)
message_app.command("consume")(messages.message_consume)
message_app.command("recall")(messages.message_recall)
message_app.command("resend")(messages.message_resend)
acl_app = _room("Access control: users and policies (5.x), accounts (4.9).", app, "acl")
user_app = _room("Users of 5.x brokers.", acl_app, "user")
user_app.command("list")(acl.user_list)
user_app.command("create")(acl.user_create)
user_app.command("update")(acl.user_update)
user_app.command("delete")(acl.user_delete)
policy_app = _room("Policies of 5.x brokers: who may do what.", acl_app, "policy")
policy_app.command("list")(acl.policy_list)
policy_app.command("set")(acl.policy_set)
policy_app.command("delete")(acl.policy_delete)
account_app = _room("Accounts of 4.9's ACL files.", acl_app, "account")
account_app.command("set")(acl.account_set)
account_app.command("delete")(acl.account_delete)
account_app.command("white")(acl.account_white)
account_app.command("version")(acl.account_version)
pipeline_app = _room("Turn a cluster's trace into trajectories and verdicts (PySpark).", app, "pipeline")
pipeline_app.command("once")(ingest.once)
pipeline_app.command("run")(ingest.run)
app.command("demo")(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        from mqtrail import __version__

        sys.stdout.write(f"mqtrail {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options before the command."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (sys.argv where None) and return its exit code."""
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="mqtrail", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        warn("interrupted")
        return Exit.INTERRUPTED
    except UsageError as error:
        warn(str(error))
        return Exit.USAGE
    except CannotLook as error:
        warn(str(error))
        return Exit.CANNOT_LOOK
    except MQError as error:
        warn(str(error))
        return Exit.FAILED
    except BrokenPipeError:  # `mqtrail export | head`: the reader has gone, nothing more to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit has a place to go to
        return Exit.OK
    except ModuleNotFoundError as error:
        told = missing_extra(error)
        if told is None:
            raise
        warn(told)
        return Exit.USAGE
    except Exception as error:
        if not isinstance(error, _UsageProblem):
            raise
        error.show()  # type: ignore[attr-defined]
        return Exit.USAGE
    return int(code or 0)


def main() -> None:
    """The program."""
    sys.exit(run())
