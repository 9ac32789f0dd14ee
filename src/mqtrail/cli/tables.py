"""`pipeline table`: a Delta table from a binlog topic. `reconcile table`: whether it agrees with its source."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from .answers import reading
from .binlog import CertificateFile, PasswordFile
from .config import Layer, assignments, binlog_password, has_password, load
from .exits import PROOF_EXITS, Exit, SourceUnavailable, UsageError
from .ingest import Master, SparkConf, stop_on_signals
from .options import ConfigFile, Json, Namesrv, duration_ms
from .output import say, show_json, warn

if TYPE_CHECKING:
    from mqtrail.tables import RowDifference, TableComparison, TableReport

SHOWN_MAX = 80  # characters of a value

TableFolder = Annotated[Path, typer.Option("--table", readable=False, help="Folder of the Delta table.")]


def pipeline_table(
    topic: Annotated[str, typer.Option("--topic", help="Topic that `mqtrail binlog run` sends to.")],
    folder: TableFolder,
    source: Annotated[
        str,
        typer.Option(
            "--source",
            metavar="DATABASE.TABLE",
            help="Table whose changes are merged. [default: as recorded in --table]",
        ),
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", help="Continue until SIGINT or SIGTERM.")] = False,
    interval: Annotated[
        str, typer.Option("--interval", help="With --follow: time between the starts of two merges.")
    ] = "5s",
    batch: Annotated[int, typer.Option("--batch", min=1, help="Maximum number of messages in one commit.")] = 100_000,
    ignore_other: Annotated[
        bool, typer.Option("--ignore-other", help="Leave out messages that are not changes of a database.")
    ] = False,
    namesrv: Namesrv = None,
    master: Master = None,
    spark_conf: SparkConf = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Merge the changes in a binlog topic into a Delta table, once or until stopped. Run it again to continue."""
    interval_ms = duration_ms(interval, "--interval")
    settings = load(config)
    conf = {name: str(value) for name, value in assignments(spark_conf or [], "--spark-conf").items()}
    session = settings.room("spark", Layer("flag", {} if master is None else {"master": master}))
    from mqtrail.tables import TableConfig, TableJob
    from mqtrail.wire import validate_topic

    validate_topic(topic)
    wanted = TableConfig(
        namesrv=settings.namesrv(namesrv),
        topic=topic,
        table=folder.expanduser().absolute(),
        source=source,
        ignores_other=ignore_other,
        batch_count=batch,
        instance=settings.room("client"),
        session=dataclasses.replace(session, spark_conf={**settings.spark_conf(), **conf}),
    )
    stop = Event()
    if follow:
        stop_on_signals(stop)
    with TableJob(wanted, warn) as job:
        if follow:
            job.run(interval_ms, stop, lambda report: _show(report, json))
        else:
            _show(job.once(), json)
    return Exit.OK


def _show(report: TableReport, json: bool) -> None:
    if json:
        show_json(dataclasses.asdict(report))
        return
    counted = ("repeated", "late", "schema", "elsewhere", "other")
    further = ", ".join(f"{count} {name}" for name in counted if (count := getattr(report, name)))
    say(
        f"{report.source}: merged {report.changes} changes of {report.messages} messages"
        f"{further and f' ({further})'}; version {report.version}, {report.behind} messages behind, "
        f"in {report.seconds:.1f} s"
    )


def reconcile_table(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The server: mysql://user@host:port.")],
    folder: TableFolder,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", readable=False, help="State file of `binlog run`; all changes up to its position were sent."
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--exclude-column", metavar="COLUMN", help="Column to leave out; repeatable."),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", min=0, max=10_000, help="Maximum number of rows of each kind to list.")
    ] = 20,
    password_file: PasswordFile = None,
    ssl_ca: CertificateFile = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Compare a Delta table with the source of its changes, and list missing, extra, different and late rows.

    Exit code 0: both agree. 1: rows are missing, extra or different. 3: rows are late or unknown, or a side could not
    be read.
    """
    if has_password(source):
        raise UsageError(
            "found a password in the URL, which other users of this machine can read: pass --password-file, or set "
            "MQTRAIL_BINLOG_PASSWORD"
        )
    settings = load(config)
    from mqtrail.binlog import BinlogError, SourceAway, source_of
    from mqtrail.tables import CompareConfig, TableError, TableUnreadable, compare

    wanted = CompareConfig(
        table=folder.expanduser().absolute(),
        source=source_of(source, binlog_password(password_file), "" if ssl_ca is None else str(ssl_ca)),
        namesrv=settings.namesrv(namesrv),
        state=state,
        excluded=tuple(columns or ()),
        rows_max=rows,
        instance=settings.room("client"),
    )
    try:
        with reading("comparing", json):
            found = compare(wanted)
    except (TableError, TableUnreadable, BinlogError, SourceAway) as error:
        raise SourceUnavailable(str(error)) from error
    if json:
        show_json(dataclasses.asdict(found))
    else:
        _show_comparison(found)
    return PROOF_EXITS[found.outcome]


def _show_comparison(found: TableComparison) -> None:
    say(
        f"{found.source} at {found.source_place}: {found.source_rows} rows; {found.table} at version {found.version}, "
        f"read to {found.read_to or 'nothing'}: {found.table_rows} rows"
    )
    counts = ", ".join(f"{'at least ' if found.is_cut else ''}{count} {sort}" for sort, count in found.counts.items())
    differing = f"{found.parts_different} of {found.parts} parts differ by their checksums"
    say(f"{'agree' if not any(found.counts.values()) else counts}; {differing}, in {found.seconds:.1f} s")
    if found.columns:
        say(f"columns that differ: {', '.join(f'{name} in {count} rows' for name, count in found.columns.items())}")
    if found.lag_ms:
        say(f"the oldest late change is {found.lag_ms / 1000:.1f} s old")
    if found.out_of_order:
        say(f"{found.out_of_order} messages came after a newer one of their row, and changed nothing")
    for row in found.rows:
        _show_row(row)
    for sort, count in found.counts.items():
        if (left := count - sum(row.sort == sort for row in found.rows)) > 0:
            say(f"{left} further {sort} rows are not named: --rows names more")
    for note in found.notes:
        warn(note)


def _show_row(row: RowDifference) -> None:
    say(f"{row.sort}: {row.key}{row.hint and f' ({row.hint})'}")
    for name, (expected, has) in row.columns.items():
        say(f"  {name}: source {_shown(expected)}, table {_shown(has)}")
    if row.msg_id:
        say(f"  the table has the change at {row.position}: mqtrail trace {row.msg_id}")
    if others := [one for one in row.messages if one != row.msg_id]:
        say(f"  other messages of the row: {', '.join(others)}")


def _shown(value: object) -> str:
    text = "NULL" if value is None else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}… ({len(text)} characters)"
