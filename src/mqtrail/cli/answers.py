"""`trace`, `search`, `report`, `export`, `doctor`: print answers as text or JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from mqtrail.clock import now_ms
from mqtrail.wire import TRACE_TOPIC, MQError

from .config import Config, load
from .exits import Exit, SourceUnavailable, UsageError
from .options import (
    REPORT_ROWS,
    ConfigFile,
    Json,
    LakeCluster,
    LakeFolder,
    Namesrv,
    RowFile,
    SentFrom,
    SentTo,
    check_row_file,
    duration_ms,
    time_range,
)
from .output import progress, show_answer, show_json, warn

if TYPE_CHECKING:
    from mqtrail.answers import Answers, Scope, SearchConditions

TraceTopic = Annotated[str, typer.Option("--trace-topic", help="Trace topic of the clients.")]


SearchKey = Annotated[
    str, typer.Option(help="Exact message key, id of a message or of its batch, or its OpenTelemetry trace id.")
]
SearchStatus = Annotated[
    list[str] | None, typer.Option(help="Verdict code, for example DEAD_LETTERED; repeatable, any of them matches.")
]
SearchHost = Annotated[str, typer.Option(help="IP address of the producer or of a consumer, or its first characters.")]
SearchReason = Annotated[
    str, typer.Option(help="Name of a reason of a verdict, without parameters, for example END_NOT_TRACED.")
]
HandlerOver = Annotated[str, typer.Option(help="Only messages whose handler ran at least this long, for example 2s.")]
TotalOver = Annotated[
    str, typer.Option(help="Only messages that a group finished this long after their send, or later.")
]
DeliveriesOver = Annotated[
    int | None, typer.Option(min=0, help="Only messages that a group received more often than this.")
]
Facets = Annotated[
    bool, typer.Option("--facets", help="Count the matches by verdict, topic, group, tag, broker and reason.")
]
SearchLimit = Annotated[
    int,
    typer.Option(
        min=1, max=100_000, help="Maximum number of messages, newest first; with --facets of values of a field."
    ),
]


@contextmanager
def reading(what: str, json: bool) -> Iterator[None]:
    """Show progress; convert errors to SourceUnavailable, so that an unreadable lake is not reported as "not found"."""
    try:
        with progress(what, enabled=not json):
            yield
    except UsageError:
        raise
    except MQError as error:
        raise SourceUnavailable(str(error)) from error
    except OSError as error:
        raise SourceUnavailable(f"cannot read the answer: {error}") from error


def _answers(
    settings: Config,
    lake: str | None,
    namesrv: str | None,
    trace_topic: str = TRACE_TOPIC,
    cluster: str = "",
) -> Answers:
    from mqtrail.answers import Answers

    folder = settings.lake(lake)
    servers = settings.namesrv(namesrv, is_default_used=False)
    if folder is None and not servers:
        raise UsageError(
            "found neither --lake nor --namesrv, expected one or both: pass the folder of the lake, the name servers"
        )
    return Answers(
        folder,
        servers,
        cluster=cluster,
        settings=settings.room("judge"),
        trace_topic=trace_topic,
        instance=settings.room("client"),
    )


def lake_answers(settings: Config, lake: str | None, cluster: str = "") -> Answers:
    from mqtrail.answers import Answers

    return Answers(settings.lake_to_read(lake), cluster=cluster, settings=settings.room("judge"))


def trace(
    asked: Annotated[
        str, typer.Argument(metavar="ID", help="Message id (of the client or of the broker) or message key.")
    ],
    lake: LakeFolder = None,
    namesrv: Namesrv = None,
    cluster: LakeCluster = "",
    trace_topic: TraceTopic = TRACE_TOPIC,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show the trajectory of a message: its timeline, its verdicts and their reasons."""
    from mqtrail.answers import Status, as_json

    if not asked.strip():
        raise UsageError("found an empty id, expected a message's id or a key")
    with reading("searching", json):
        answer = _answers(load(config), lake, namesrv, trace_topic, cluster).trace(asked.strip(), now_ms())
    if json:
        show_json(as_json(answer))
    else:
        from .draw import trace_answer

        show_answer(trace_answer, answer)
    return {
        Status.FOUND: Exit.OK,
        Status.NOT_FOUND: Exit.FAILED,
        Status.CANNOT_LOOK: Exit.CANNOT_LOOK,
        Status.NOT_TRACED: Exit.NOT_TRACED,
    }[answer.status]


def search(
    key: SearchKey = "",
    topic: Annotated[str, typer.Option(help="Topic of the message.")] = "",
    group: Annotated[str, typer.Option(help="Consumer or producer group.")] = "",
    status: SearchStatus = None,
    since: SentFrom = "",
    until: SentTo = "",
    tag: Annotated[str, typer.Option(help="Tag of the message.")] = "",
    host: SearchHost = "",
    broker: Annotated[str, typer.Option(help="Broker that stored the message.")] = "",
    queue_id: Annotated[int | None, typer.Option(min=0, help="Number of its queue on the broker.")] = None,
    reason: SearchReason = "",
    handler_over: HandlerOver = "",
    total_over: TotalOver = "",
    deliveries_over: DeliveriesOver = None,
    size_over: Annotated[int | None, typer.Option(min=0, help="Only messages whose body has more bytes.")] = None,
    facets: Facets = False,
    limit: SearchLimit = 50,
    skip: Annotated[int, typer.Option(min=0, help="Number of newest matches to skip.")] = 0,
    lake: LakeFolder = None,
    cluster: LakeCluster = "",
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Find messages in the lake by key, topic, group, verdict, place, latency, deliveries, time and others."""
    from mqtrail.answers import SearchConditions

    if facets and skip:
        raise UsageError("found --skip with --facets, expected one of them: all matches are counted")
    now = now_ms()
    first_ms, end_ms = time_range(since, until, now)
    wanted = SearchConditions(
        key=key,
        topic=topic,
        group_name=group,
        codes=tuple(_code(one) for one in status or ()),
        tag=tag,
        host=host,
        broker=broker,
        queue_id=queue_id,
        reason=reason,
        handler_ms_min=duration_ms(handler_over, "--handler-over") if handler_over else None,
        total_ms_min=duration_ms(total_over, "--total-over") if total_over else None,
        deliveries_over=deliveries_over,
        body_size_over=size_over,
        first_ms=first_ms,
        end_ms=end_ms,
        limit=limit,
        skip=skip,
    )
    ask = _facets if facets else _matches
    return ask(partial(lake_answers, load(config), lake, cluster), wanted, now, json=json)


def _matches(opened: Callable[[], Answers], wanted: SearchConditions, now: int, *, json: bool) -> int:
    from mqtrail.answers import as_json

    with reading("searching", json):
        answer = opened().search(wanted, now)
    if json:
        show_json(as_json(answer))
    else:
        from .draw import search_answer

        show_answer(search_answer, answer)
    return exit_of(answer.scope, Exit.OK if answer.trajectories else Exit.FAILED)


def _facets(opened: Callable[[], Answers], wanted: SearchConditions, now: int, *, json: bool) -> int:
    from mqtrail.answers import as_json

    with reading("counting", json):
        found = opened().facets(wanted, now, values_max=wanted.limit)
    if json:
        show_json(as_json(found))
    else:
        from .draw import facets_answer

        show_answer(facets_answer, found)
    return exit_of(found.scope, Exit.OK if found.matched_count else Exit.FAILED)


def exit_of(scope: Scope, exit_code: Exit) -> Exit:
    """Return the exit code of an answer: CANNOT_LOOK if parts of the lake were unreadable."""
    if not scope.is_damaged:
        return exit_code
    warn("parts of the lake could not be read: the answer is incomplete and lists them at its end")
    return Exit.CANNOT_LOOK


def _code(text: str) -> str:
    from mqtrail.trail import CODES

    name = text.strip().upper()
    if name not in CODES:
        raise UsageError(f"--status: found {text!r}, expected one of {', '.join(CODES)}")
    return name


def report(
    lake: LakeFolder = None,
    since: SentFrom = "",
    until: SentTo = "",
    worst: Annotated[int, typer.Option(min=0, max=100, help="Number of worst trajectories to show.")] = 1,
    rows: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of rows of each table.")] = REPORT_ROWS,
    cluster: LakeCluster = "",
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Summarize a lake: verdicts, latency, lag and the worst messages."""
    from mqtrail.answers import as_json

    now = now_ms()
    first_ms, end_ms = time_range(since, until, now)
    with reading("reading the lake", json):
        found = lake_answers(load(config), lake, cluster).report(now, first_ms, end_ms, worst=worst)
    if json:
        show_json(as_json(found))
    else:
        from .draw_report import report as drawn

        show_answer(partial(drawn, rows_max=rows), found)
    return exit_of(found.scope, Exit.OK)


def export(
    lake: LakeFolder = None,
    since: SentFrom = "",
    until: SentTo = "",
    cluster: LakeCluster = "",
    output: RowFile = None,
    config: ConfigFile = None,
    json: Annotated[bool, typer.Option("--json", help="No effect: the output is always JSON.")] = True,
) -> int:
    """Print the verdicts of every message, one JSON line per message, or write them to a file."""
    if output is not None:
        check_row_file(output)
    now = now_ms()
    first_ms, end_ms = time_range(since, until, now)
    with reading("reading the lake", json=True):
        lines = lake_answers(load(config), lake, cluster).export(now, first_ms, end_ms)
        if output is not None:
            from mqtrail.answers import save_export

            warn(f"{save_export(lines, output)} messages written to {output}")
            return Exit.OK
        for line in lines:
            show_json(line)
    return Exit.OK


def doctor(
    namesrv: Namesrv = None,
    sample: Annotated[int, typer.Option(min=0, max=100_000, help="Number of latest trace messages to read.")] = 1_000,
    trace_topic: TraceTopic = TRACE_TOPIC,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Report what can and cannot be traced on a cluster, and why. Read-only."""
    from mqtrail.answers import as_json, examine

    settings = load(config)
    servers = settings.namesrv(namesrv)
    with reading("querying the cluster", json):
        found = examine(
            servers, now_ms(), trace_topic=trace_topic, sample_count=sample, instance=settings.room("client")
        )
    if json:
        show_json(as_json(found))
    else:
        from .draw_doctor import diagnosis

        show_answer(diagnosis, found)
    if not found.brokers:
        raise SourceUnavailable(found.why)
    return Exit.OK
