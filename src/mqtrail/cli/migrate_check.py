"""`migrate compare`, `migrate results`, `migrate gate`: whether both sides agree, and whether a cut-over may begin."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from mqtrail.clock import now_ms

from .config import Config, load
from .exits import PROOF_EXITS, Exit, UsageError
from .migrate import FOLDER_DEFAULT, Folder, Kafka, KafkaSettings, kafka_of
from .operate import table
from .options import REPORT_ROWS, ConfigFile, Json, Namesrv, duration_ms, time_range
from .output import progress, say, show_json

if TYPE_CHECKING:
    from mqtrail.migrate import CompareSides, Comparison, GateConfig, GateResult

Key = Annotated[
    str, typer.Option("--key", help="Business key: kafka (the record's key), header:NAME, or json:FIELD of the value.")
]
Since = Annotated[str, typer.Option("--from", help="Earliest time of records: a time (UTC), or an age such as 2h.")]
Until = Annotated[str, typer.Option("--until", help="Latest time of records (exclusive).")]
Grace = Annotated[
    str,
    typer.Option(
        "--grace",
        help="Age below which a missing copy counts as on its way. For a bridge's records, its progress decides.",
    ),
]
Late = Annotated[
    str, typer.Option("--late", help="Report messages stored more than this after their record's time. [default: none]")
]
Accepted = Annotated[
    list[str] | None,
    typer.Option("--accept", metavar="KIND", help="Kind of difference that does not count as found; repeatable."),
]
Rows = Annotated[int, typer.Option(min=0, max=10_000, help="Maximum number of examples of each kind.")]


def migrate_compare(
    topic: Annotated[str, typer.Argument(help="Topic of Kafka.")],
    kafka: Kafka,
    to: Annotated[str, typer.Option("--to", help="Topic of RocketMQ. [default: the same name]")] = "",
    folder: Folder = FOLDER_DEFAULT,
    key: Key = "kafka",
    since: Since = "",
    until: Until = "",
    grace: Grace = "30s",
    late: Late = "",
    accepted: Accepted = None,
    rows: Rows = REPORT_ROWS,
    kafka_settings: KafkaSettings = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Compare a Kafka topic with its topic of RocketMQ, record by record, by business key.

    Exit code 0: no differences; records still on their way do not count. 1: found some. 3: found none, but not
    everything could be compared.
    """
    first_ms, end_ms = time_range(since, until, now_ms())
    grace_ms, late_ms = duration_ms(grace, "--grace"), duration_ms(late, "--late") if late else 0
    source = kafka_of(kafka, kafka_settings)
    from mqtrail.migrate import CompareSides

    wanted = CompareSides(
        kafka=source,
        topic=topic,
        target=to or topic,
        folder=folder,
        key=key,
        since_ms=first_ms,
        until_ms=end_ms,
        grace_ms=grace_ms,
        late_ms=late_ms,
        examples=rows,
        accepted=_accepted(accepted),
    )
    with progress("comparing", enabled=not json):
        found = asyncio.run(_compare(wanted, load(config), namesrv))
    if json:
        show_json(asdict(found))
    else:
        _draw(found, "records", "messages")
    return PROOF_EXITS[found.outcome]


def _accepted(kinds: list[str] | None) -> frozenset[str]:
    """Return kinds of differences. UsageError: there is no such kind."""
    from mqtrail.migrate import Difference

    if unknown := [one for one in kinds or () if one not in list(Difference)]:
        raise UsageError(f"--accept: found {unknown[0]!r}, expected one of {', '.join(Difference)}")
    return frozenset(kinds or ())


def migrate_results(
    folder: Folder = FOLDER_DEFAULT,
    since: Since = "",
    until: Until = "",
    grace: Annotated[
        str, typer.Option("--grace", help="Age below which a result of one side alone counts as on its way.")
    ] = "30s",
    accepted: Accepted = None,
    rows: Rows = REPORT_ROWS,
    json: Json = False,
) -> int:
    """Compare the results that handlers on Kafka and on RocketMQ recorded with `ResultLog`, by key.

    Exit code 0: no differences; results that may still get their other side do not count. 1: found some. 3: found none,
    but not everything could be compared.
    """
    first_ms, end_ms = time_range(since, until, now_ms())
    grace_ms = duration_ms(grace, "--grace")
    from mqtrail.migrate import ResultRange, compare_results

    wanted = ResultRange(
        folder=folder,
        since_ms=first_ms,
        until_ms=end_ms,
        grace_ms=grace_ms,
        examples=rows,
        accepted=_accepted(accepted),
    )
    with progress("comparing", enabled=not json):
        found = compare_results(wanted)
    if json:
        show_json(asdict(found))
    else:
        _draw(found, "results of kafka", "of rocketmq")
    return PROOF_EXITS[found.outcome]


async def _compare(wanted: CompareSides, settings: Config, namesrv: str | None) -> Comparison:
    from mqtrail.client import Admin
    from mqtrail.migrate import compare

    async with Admin(settings.namesrv(namesrv), config=settings.room("client")) as admin:
        return await compare(wanted, admin)


def _draw(found: Comparison, records: str, messages: str) -> None:
    say(f"{found.outcome.words}: {found.records} {records}, {found.messages} {messages}, {found.keys} keys")
    accepted = dict.fromkeys(found.accepted, "accepted")
    table(("difference", "count", ""), [(kind, n, accepted.get(kind, "")) for kind, n in found.counts.items()])
    say(f"{found.matched} are equal, {found.pending} may still be on their way")
    for kind, examples in found.examples.items():
        for text in examples:
            say(f"{kind}: {text}")
    for why, count in found.gaps.items():
        say(f"not compared: {count}: {why}")


def migrate_gate(
    groups: Annotated[
        list[str] | None, typer.Option("--group", help="Consumer group of RocketMQ that takes over; repeatable.")
    ] = None,
    folder: Folder = FOLDER_DEFAULT,
    lag_max: Annotated[int, typer.Option("--max-lag", min=0, help="Offsets that the bridge may be behind Kafka.")] = 0,
    compare_age: Annotated[
        str, typer.Option("--compare-age", help="How old the last comparisons may be, for example 1h.")
    ] = "1h",
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Report go or no-go for a cut-over, with reasons: bridge, comparisons, failed copies, offsets, members of groups.

    It changes nothing. Exit code 0: go. 1: no-go.
    """
    age_ms = duration_ms(compare_age, "--compare-age")
    from mqtrail.migrate import GateConfig

    wanted = GateConfig(folder=folder, groups=tuple(groups or ()), lag_max=lag_max, compare_age_ms=age_ms)
    found = asyncio.run(_gate(wanted, load(config), namesrv))
    if json:
        show_json(asdict(found))
    else:
        table(
            ("", "check", "found", "remedy"),
            [
                ("ok" if one.is_ok else "NO", one.name, one.found, "" if one.is_ok else one.remedy)
                for one in found.checks
            ],
        )
        say("go" if found.is_go else "no-go")
    return Exit.OK if found.is_go else Exit.FAILED


async def _gate(wanted: GateConfig, settings: Config, namesrv: str | None) -> GateResult:
    from mqtrail.client import Admin
    from mqtrail.migrate import gate

    async with Admin(settings.namesrv(namesrv), config=settings.room("client")) as admin:
        return await gate(wanted, admin)
