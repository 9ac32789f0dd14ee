"""Options that several commands share, and parsers of times, durations and queues."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqtrail.wire import parse_duration, parse_moment

from .exits import UsageError

if TYPE_CHECKING:
    from mqtrail.wire import MessageQueue

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
ConfigFile = Annotated[
    Path | None,
    # readable is False: typer would reject an unreadable path without a remedy, with the exit code of a wrong option.
    typer.Option("--config", readable=False, help="Settings file. [default: ./mqtrail.toml if it exists]"),
]
Namesrv = Annotated[
    str | None, typer.Option("--namesrv", metavar="HOST:PORT[;…]", help="Name server addresses. [env: NAMESRV_ADDR]")
]
SentFrom = Annotated[str, typer.Option("--from", help="Earliest send time: a time (UTC), or an age such as 2h.")]
SentTo = Annotated[str, typer.Option("--to", help="Latest send time (exclusive).")]
LakeFolder = Annotated[
    str | None, typer.Option("--lake", metavar="DIR", help="Folder of the lake, or s3://bucket/prefix.")
]
LakeCluster = Annotated[
    str, typer.Option("--cluster", metavar="NAME", help="Only this cluster of the lake. [default: all]")
]
RowFile = Annotated[
    Path | None,
    typer.Option("--output", readable=False, help="Write all rows to this file instead: .parquet, .csv or .jsonl."),
]
REPORT_ROWS = 8  # of each table of a report


def check_row_file(output: Path) -> None:
    """Raise UsageError unless the name of the file says a known format."""
    from mqtrail.answers import ROW_FORMATS

    if output.suffix not in ROW_FORMATS:
        known = ", ".join(ROW_FORMATS)
        raise UsageError(f"--output: found {str(output)!r}, expected a file name that ends with one of {known}")


def queue_of(topic: str, text: str | None) -> MessageQueue | None:
    """Return the queue of `--queue BROKER/QUEUE`; None without one. UsageError."""
    from mqtrail.wire import IdError, MessageQueue

    if text is None:
        return None
    try:
        return MessageQueue.at(topic, text)
    except IdError as error:
        raise UsageError(f"--queue: {error}") from None


def duration_ms(text: str, flag: str) -> int:
    """Return the ms of `90s`, `15m`, `2h`, `3d`. UsageError."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def time_range(since: str, until: str, now_ms: int) -> tuple[int | None, int | None]:
    """Return the epoch ms of --from and --to; None: not given. UsageError."""
    first_ms = moment_ms(since, now_ms, "--from") if since else None
    end_ms = moment_ms(until, now_ms, "--to") if until else None
    if first_ms is not None and end_ms is not None and end_ms <= first_ms:
        raise UsageError(f"--to: found {until!r}, expected a time after --from {since!r}")
    return first_ms, end_ms


def moment_ms(text: str, now_ms: int, flag: str) -> int:
    """Return the epoch ms of a time or an age (wire/moments.py). UsageError."""
    try:
        return parse_moment(text, now_ms)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None
