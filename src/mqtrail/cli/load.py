"""`load`: a load test with a report."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .config import Config
from .config import load as load_settings
from .exits import Exit, SourceUnavailable, UsageError
from .local_processes import listening_processes
from .operate import Yes, confirm_change
from .options import ConfigFile, Json, LakeFolder, Namesrv, duration_ms
from .output import progress, show_answer, show_json
from .queue import quieten

if TYPE_CHECKING:
    from mqtrail.load import LoadPlan, LoadReport, LoadTarget

    from .load_verdicts import TraceJudge

SEED_BITS = 31


Rate = Annotated[float, typer.Option(help="Messages per second, of all producers together.")]
Duration = Annotated[str, typer.Option(help="Time to measure, for example 90s or 15m.")]
WarmUp = Annotated[str, typer.Option(help="Time with the same load before --duration; not part of latency and rate.")]
Size = Annotated[
    str, typer.Option(help="Bytes of a body: 512, a range such as 100-4KiB, or with weights 512:90,16KiB:10.")
]
Keys = Annotated[int, typer.Option(help="Number of different message keys; 0: no keys.")]
Ordered = Annotated[
    bool, typer.Option("--ordered", help="Send each key to its own queue, consume in order, and check the order.")
]
Producers = Annotated[int, typer.Option(help="Number of producers, each with its own connections.")]
Consumers = Annotated[int, typer.Option(help="Number of consumers of the group; 0: only send.")]
InFlight = Annotated[int, typer.Option(help="Maximum number of sends without an answer.")]
Drain = Annotated[str, typer.Option(help="Maximum time at the end for the consumers to catch up.")]
Seed = Annotated[int | None, typer.Option(help="Seed of sizes, keys and times. [default: random, printed]")]
Create = Annotated[bool, typer.Option("--create", help="Create the topic on every broker if it is missing.")]
Queues = Annotated[
    int, typer.Option(min=1, max=16_384, help="Number of queues on each broker of a topic that it creates.")
]
Trace = Annotated[bool, typer.Option("--trace/--no-trace", help="Trace the sends and deliveries.")]
Verdicts = Annotated[
    bool, typer.Option("--verdicts", help="Trace, judge the messages with Spark, and compare the counts.")
]


def load(
    topic: Annotated[str, typer.Argument(help="Topic to send to.")],
    rate: Rate,
    duration: Duration = "30s",
    warm_up: WarmUp = "0s",
    size: Size = "1KiB",
    keys: Keys = 0,
    ordered: Ordered = False,
    producers: Producers = 1,
    consumers: Consumers = 1,
    group: Annotated[str, typer.Option(help="Consumer group, and producer group.")] = "mqtrail-load",
    batch: Annotated[int, typer.Option(help="Number of messages in one send.")] = 1,
    delay_level: Annotated[int, typer.Option(help="Delay level of the broker; 0: no delay.")] = 0,
    arrivals: Annotated[str, typer.Option(help="Times of the sends: constant or poisson.")] = "constant",
    in_flight: InFlight = 1_000,
    drain: Drain = "30s",
    seed: Seed = None,
    create: Create = False,
    queues: Queues = 8,
    trace: Trace = False,
    verdicts: Verdicts = False,
    lake: LakeFolder = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Send at a set rate, consume, and report latency, losses and repeats. Ctrl-C ends early, with the report.

    Exit code 1: messages were lost, repeated, not acknowledged, or the rate was missed. 3: the outcome is unknown.
    """
    if lake is not None and not verdicts:
        raise UsageError("found --lake without --verdicts, expected both: the lake is for the verdicts")
    values = {
        "topic": topic,
        "group": group,
        "rate": rate,
        "keys": keys,
        "ordered": ordered,
        "batch": batch,
        "producers": producers,
        "consumers": consumers,
        "delay_level": delay_level,
        "in_flight": in_flight,
    }
    times = {"duration_s": ("--duration", duration), "warm_up_s": ("--warm-up", warm_up), "drain_s": ("--drain", drain)}
    settings = load_settings(config)
    plan = _plan(settings, values, times, size, arrivals, seed)
    quieten("error")  # the report counts what fails; a cluster that is down warns for each queue
    check(asyncio.run(_prepare(plan, settings, namesrv, queues if create else None)), plan, yes)
    with ExitStack() as stack:
        judge = _judge(stack, settings, namesrv, lake, plan) if verdicts else None
        report = _run(plan, settings, namesrv, trace or verdicts, judge, json)
    return _show(report, json)


def _plan(
    settings: Config,
    values: Mapping[str, Any],
    times: Mapping[str, tuple[str, str]],
    size: str,
    arrivals: str,
    seed: int | None,
) -> LoadPlan:
    """Return the plan of the options. UsageError."""
    from mqtrail.load import Arrivals, InvalidPlan, LoadPlan, Sizes

    if arrivals not in list(Arrivals):
        raise UsageError(f"--arrivals: found {arrivals!r}, expected {' or '.join(Arrivals)}")
    try:
        sizes = Sizes.parse(size)
    except ValueError as error:
        raise UsageError(f"--size: {error}") from None
    seconds: dict[str, Any] = {name: duration_ms(text, flag) / 1000 for name, (flag, text) in times.items()}
    try:
        plan = LoadPlan(
            **values,
            **seconds,
            sizes=sizes,
            arrivals=Arrivals(arrivals),
            seed=secrets.randbits(SEED_BITS) if seed is None else seed,
        )
        plan.check_size(settings.room("producer").body_size_max)
    except InvalidPlan as error:
        raise UsageError(str(error)) from error
    return plan


def _show(report: LoadReport, json: bool) -> Exit:
    """Print the report and return the exit code of its verdict."""
    if json:
        show_json(asdict(report))
    else:
        from .draw_load import load_report

        show_answer(load_report, report)
    return {"OK": Exit.OK, "FAILED": Exit.FAILED, "UNKNOWN": Exit.CANNOT_LOOK}[report.verdict]


async def _prepare(plan: LoadPlan, settings: Config, namesrv: str | None, queues: int | None) -> LoadTarget:
    from mqtrail.client import Admin
    from mqtrail.load import prepare_topic

    async with Admin(settings.namesrv(namesrv), config=settings.room("client")) as admin:
        return await prepare_topic(admin, plan.topic, plan.group, create=queues is not None, queues=queues or 1)


def check(target: LoadTarget, plan: LoadPlan, yes: bool) -> None:
    """Ask before messages are mixed with those of others. UsageError: members of the group are online."""
    if target.members and plan.consumers:
        raise UsageError(
            f"found members of group {plan.group!r} online ({', '.join(target.members)}), expected none: they would "
            "consume messages of the load; pass another --group"
        )
    others = []
    if target.foreign_count:
        others.append(f"which holds {target.foreign_count} messages that are not from a load test")
    if target.groups:
        others.append(f"which {', '.join(target.groups)} may consume")
    if target.unknown:
        others.append(f"of which this is not known: {'; '.join(target.unknown)}")
    if others:
        confirm_change(f"send {plan.messages} messages to topic {plan.topic!r}, {', and '.join(others)}", yes)


def _judge(stack: ExitStack, settings: Config, namesrv: str | None, lake: str | None, plan: LoadPlan) -> TraceJudge:
    """Return the judge of the run's trace, ready to read what comes from now on."""
    from .load_verdicts import TraceJudge

    judge = TraceJudge.open(stack, settings, namesrv, lake, plan.topic)
    judge.begin()
    return judge


def _run(
    plan: LoadPlan, settings: Config, namesrv: str | None, trace: bool, judge: TraceJudge | None, json: bool
) -> LoadReport:
    from mqtrail.load import LoadRun, LoadUnready
    from mqtrail.net import loop_factory, stop_on_signals

    producing, consuming = settings.client("producer"), settings.client("consumer")
    with progress("starting", enabled=not json) as shown, asyncio.Runner(loop_factory=loop_factory()) as runner:

        def note(text: str) -> None:
            if shown is not None:
                shown.update(shown.task_ids[0], description=text)

        async def run() -> LoadReport:
            one = LoadRun(
                plan,
                settings.namesrv(namesrv),
                producer=producing,
                consumer=consuming,
                trace=trace,
                find_processes=listening_processes,
                note=note,
            )
            if threading.current_thread() is threading.main_thread():  # a test may run it in another
                stop_on_signals(one.stop)
            return await one.run()

        try:
            report = runner.run(run())
        except LoadUnready as error:
            raise SourceUnavailable(str(error)) from error
        if judge is not None:
            note("judging the messages with Spark")
            report = judge.judged(report)
    return report
