"""The commands by name, and how their errors end: one line on standard error and an exit code, never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from mqtrail.cli import demo, ingest, look, queue, up
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
topic_app = typer.Typer(help="List, create and show topics.", no_args_is_help=True, rich_markup_mode=None)
pipeline_app = typer.Typer(
    help="Turn a cluster's trace into trajectories and verdicts (PySpark).", no_args_is_help=True, rich_markup_mode=None
)

app.command("up")(up.up)
app.add_typer(topic_app, name="topic")
topic_app.command("list")(queue.topic_list)
topic_app.command("create")(queue.topic_create)
topic_app.command("show")(queue.topic_show)
app.command("send")(queue.send)
app.command("consume")(queue.consume)
app.command("trace")(look.trace)
app.command("search")(look.search)
app.command("report")(look.report)
app.command("export")(look.export)
app.command("doctor")(look.doctor)
app.add_typer(pipeline_app, name="pipeline")
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
