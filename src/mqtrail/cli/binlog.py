"""`binlog run`, `binlog status`: the changes of a MariaDB server as messages."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqtrail.clock import now_ms

from .config import Config, binlog_password, has_password, load
from .exits import Exit, SourceUnavailable, UsageError
from .feeds import run_feed, show_progress
from .options import ConfigFile, Json, Namesrv, duration_ms
from .output import say, show_json

if TYPE_CHECKING:
    from mqtrail.binlog import BinlogConfig, BinlogState

STATE_DEFAULT = Path("binlog-state.json")

State = Annotated[Path, typer.Option("--state", readable=False, help="File with the progress.")]


Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table", metavar="DATABASE.TABLE", help="Table to read, may have * and ?; repeatable. [default: all]"
    ),
]
Excluded = Annotated[
    list[str] | None,
    typer.Option("--exclude-table", metavar="DATABASE.TABLE", help="Table to leave out, may have * and ?; repeatable."),
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--exclude-column", metavar="DATABASE.TABLE.COLUMN", help="Column to leave out; repeatable."),
]
WithSnapshot = Annotated[
    bool,
    typer.Option("--snapshot/--no-snapshot", help="Begin a new state with the existing rows, or with the next change."),
]
NewQueues = Annotated[
    bool,
    typer.Option("--new-queues", help="Continue although the topic's queues changed; keys may change their queue."),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        readable=False,
        help="File with the password of the server's user. [env: MQTRAIL_BINLOG_PASSWORD has the password]",
    ),
]
CertificateFile = Annotated[
    Path | None,
    typer.Option(
        "--ssl-ca",
        readable=False,
        help="CA certificates to check the server's certificate; requires TLS. [default: unchecked TLS, if the server "
        "offers it]",
    ),
]


def binlog_run(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The server: mysql://user@host:port.")],
    topic: Annotated[str, typer.Option("--topic", help="Topic to send to; it must exist.")],
    tables: Tables = None,
    excluded: Excluded = None,
    columns: Columns = None,
    tag: Annotated[str, typer.Option("--tag", help="Tag of the messages: table (database.table) or op.")] = "table",
    state: State = STATE_DEFAULT,
    snapshot: WithSnapshot = True,
    once: Annotated[
        bool, typer.Option("--once", help="Stop at the position where the binlog ended at the start.")
    ] = False,
    new_queues: NewQueues = False,
    retry: Annotated[
        str, typer.Option("--retry-for", help="How long the server or brokers may be unreachable, for example 5m.")
    ] = "5m",
    password_file: PasswordFile = None,
    ssl_ca: CertificateFile = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Send the rows of a MariaDB server, then their changes, in order by primary key, until SIGINT or SIGTERM.

    Run it again to continue.
    """
    if has_password(source):
        raise UsageError(
            "found a password in the URL, which other users of this machine can read: pass --password-file, or set "
            "MQTRAIL_BINLOG_PASSWORD"
        )
    if tag not in ("table", "op"):
        raise UsageError(f"--tag: found {tag!r}, expected table or op")
    retry_ms = duration_ms(retry, "--retry-for")
    from mqtrail.binlog import BinlogConfig, TagBy, source_of
    from mqtrail.wire import validate_topic

    validate_topic(topic)
    settings = load(config)
    wanted = BinlogConfig(
        source=source_of(source, binlog_password(password_file), "" if ssl_ca is None else str(ssl_ca)),
        topic=topic,
        state=state,
        tables=tuple(tables or ()),
        excluded=tuple(excluded or ()),
        columns=tuple(columns or ()),
        tag_by=TagBy(tag),
        has_snapshot=snapshot,
        takes_new_queues=new_queues,
        is_once=once,
        retry_ms=retry_ms,
    )
    found = run_feed(_run(wanted, settings, namesrv))
    if json:
        show_json(_facts(found, is_running=False))
    else:
        say(f"{_counts(found)}; the next run continues at {found.place or 'a snapshot'}")
    return Exit.OK


async def _run(wanted: BinlogConfig, settings: Config, namesrv: str | None) -> BinlogState:
    from mqtrail.binlog import BinlogRun
    from mqtrail.net import stop_on_signals

    run = BinlogRun(wanted, settings.namesrv(namesrv), settings.client("producer"))
    stop_on_signals(run.stop)
    return await run.run()


def binlog_status(state: State = STATE_DEFAULT, json: Json = False) -> int:
    """Show the progress of `binlog run`: its position in the binlog, its lag, and what it sent."""
    from mqtrail.binlog import is_running, read_state

    found = read_state(state)
    if found is None:
        raise SourceUnavailable(
            f"found no state {str(state)!r}, expected one: start `mqtrail binlog run`, or pass --state"
        )
    facts = _facts(found, is_running=is_running(state))
    lag = facts["lag_ms"]
    rows = [
        ("topic", f"{found.wish['topic']}, {len(found.queues)} queues"),
        ("snapshot", f"{'complete' if found.is_snapshot_done else 'not complete'}, {len(found.tables)} tables"),
        ("position", f"{found.place or '-'}{f', {found.done} messages further' if found.done else ''}"),
        ("GTIDs", found.gtids or "-"),
        ("lag", "unknown: no change was read yet" if lag is None else f"{lag / 1000:.1f} s"),
        ("sent", _counts(found)),
    ]
    return show_progress(facts, rows, str(state), json)


def _facts(state: BinlogState, *, is_running: bool) -> dict[str, Any]:
    now = now_ms()
    further = {"is_running": is_running, "lag_ms": state.lag_ms(now), "saved_ago_ms": max(0, now - state.saved_ms)}
    return asdict(state) | {"sent": Counter(state.counts).total()} | further


def _counts(state: BinlogState) -> str:
    found = ", ".join(f"{count} {op}" for op, count in sorted(state.counts.items()))
    return f"{Counter(state.counts).total()} messages{f' ({found})' if found else ''}"
