"""`pipeline table`: a Delta table from a binlog topic."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from .config import Layer, assignments, load
from .exits import Exit
from .ingest import Master, SparkConf, stop_on_signals
from .options import ConfigFile, Json, Namesrv, duration_ms
from .output import say, show_json, warn

if TYPE_CHECKING:
    from mqtrail.tables import TableReport

TableFolder = Annotated[Path, typer.Option("--table", readable=False, help="Folder of the Delta table.")]


def pipeline_table(
    topic: Annotated[str, typer.Option("--topic", help="Topic that `mqtrail binlog run` sends to.")],
    folder: TableFolder,
    source: Annotated[
        str,
        typer.Option(
            "--source", metavar="DATABASE.TABLE", help="Table whose changes are merged. [default: as the table has]"
        ),
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", help="Continue until SIGINT or SIGTERM.")] = False,
    interval: Annotated[
        str, typer.Option("--interval", help="With --follow: time between the starts of two merges.")
    ] = "5s",
    batch: Annotated[int, typer.Option("--batch", min=1, help="Maximum number of messages in one commit.")] = 100_000,
    ignore_other: Annotated[
        bool, typer.Option("--ignore-other", help="Leave out messages that are no changes of a database.")
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
