"""`make demo`: brokers, shop, faults, Spark, and a table that compares injected faults with verdicts."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog
from rich.console import Console, RenderableType

from mqtrail.answers import Answers, Report, TraceAnswer
from mqtrail.clock import now_ms
from mqtrail.lake import Lake, connect, relation_of
from mqtrail.net import log_processors
from mqtrail.pipeline import JobConfig, JobReport, PipelineJob
from mqtrail.trail import Settings

from .cluster import DemoCluster
from .measure import Holdings, measure
from .plan import HUNG_MS
from .score import Codes, CodeScore, Thresholds, expected_codes, score
from .show import CHANGED, show_faults, show_scores
from .story import ShopRun, facts_of, run_shop
from .truth import Fault, TruthLog, read_truth

CLIENT_LOG = "clients.log"  # log of the shop's producers and consumers, with the handlers' failures
ORDERS_DEFAULT = 6_700  # three messages each, plus a reminder for every 25th: more than 20 000 messages
SAMPLE_PAUSE_MS = 60_000  # the machine is busy: samples may be late
SETTINGS = Settings(hung_ms=HUNG_MS, sample_pause_ms_max=SAMPLE_PAUSE_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """folder: for data, lake and truth; None: a new temporary one. keep: do not delete it at the end."""

    folder: Path | None = None
    orders: int = ORDERS_DEFAULT
    keep: bool = True
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Draw:
    """Renders a report and a look-up. The command line passes its own functions."""

    report: Callable[[Report], RenderableType]
    trace: Callable[[TraceAnswer], RenderableType]


@dataclass(slots=True)
class DemoResult:
    """The result of the demo."""

    scores: list[CodeScore]
    faults: list[Fault]
    report: JobReport
    message_count: int
    example: str
    seconds: float


def run(options: DemoOptions, draw: Draw) -> int:
    """Run the demo and print its result; return 0 if every expected code was found at least once, otherwise 1."""
    folder = options.folder or Path(tempfile.mkdtemp(prefix="mqtrail-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=options.as_json)
    log = folder / CLIENT_LOG
    structlog.configure(
        processors=log_processors(colors=False), logger_factory=structlog.WriteLoggerFactory(log.open("a", buffering=1))
    )
    try:
        outcome = _Demo(folder, options.orders, console).run()
        if options.as_json:
            print(json.dumps(_json(outcome)))
        else:
            _show(console, outcome, folder, draw)
        return 0 if all(row.found for row in outcome.scores if row.expected) else 1
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


class _Demo:
    """One run: the cluster, the Spark job in its thread, the shop in the event loop."""

    def __init__(self, folder: Path, order_count: int, console: Console) -> None:
        self._folder = folder
        self._order_count = order_count
        self._console = console
        self._begun = time.monotonic()
        self._outcome: DemoResult | None = None
        self._is_sampling = False

    def say(self, text: str) -> None:
        """Print a line of progress."""
        self._console.print(f"[dim]{time.monotonic() - self._begun:6.1f} s[/]  {text}", highlight=False)

    def run(self) -> DemoResult:
        """Run the demo."""
        truth_folder = self._folder / "truth"
        self.say("starting a name server, two brokers, and Spark")
        with DemoCluster(self._folder / "brokers") as cluster, TruthLog(truth_folder) as truth:
            config = JobConfig(namesrv=cluster.namesrv, lake=self._folder / "lake", settings=SETTINGS)
            job = PipelineJob(config, self.say)
            with ThreadPoolExecutor(1, "spark") as spark, ExitStack() as sampling:
                starting = spark.submit(job.__enter__)

                async def sample() -> None:
                    await asyncio.wrap_future(spark.submit(job.sample))
                    if not self._is_sampling:
                        self._is_sampling = True
                        sampling.enter_context(job.sampling())

                async def judge(shop_run: ShopRun) -> None:
                    await asyncio.wrap_future(starting)
                    self.say("reading the trace, assembling trajectories, judging")
                    report = await asyncio.wrap_future(spark.submit(job.once))
                    holdings = await asyncio.to_thread(measure, cluster.namesrv)
                    self._outcome = await asyncio.to_thread(self._score, shop_run, report, holdings)

                try:
                    asyncio.run(run_shop(cluster, truth, truth_folder, self._order_count, sample, judge, self.say))
                finally:
                    sampling.close()
                    spark.submit(job.__exit__, None, None, None).result()
        assert self._outcome is not None
        return self._outcome

    def _score(self, shop_run: ShopRun, report: JobReport, holdings: Holdings) -> DemoResult:
        notes = list(read_truth(self._folder / "truth"))
        faults = [note for note in notes if isinstance(note, Fault)]
        killed = {key for fault in faults if fault.name == "CONSUMER_KILLED" for key in fault.keys}
        thresholds = Thresholds(
            send_slow_ms=SETTINGS.send_slow_ms,
            consumed_slow_ms=SETTINGS.consume_slow_ms,
            hung_ms=SETTINGS.hung_ms,
            late_ms=SETTINGS.delivered_late_ms,
        )
        facts = facts_of(shop_run, holdings, report.as_of_ms, thresholds, killed, self._gaps())
        expected = expected_codes(notes, facts)
        reported: dict[str, Codes] = {}
        example = ""
        for line in Answers(lake=self._folder / "lake").export(now_ms()):
            keys = line["keys"] or [holdings.ids.get(line["msg_id"], line["msg_id"])]
            groups = {group: set(codes) for group, codes in line["groups"].items()}
            reported[keys[0]] = Codes(set(line["send"]), set(line["message"]), groups, {line["knowledge"]})
            if any("CONSUMED_AFTER_RETRY" in codes for codes in groups.values()):
                example = line["msg_id"]
        seconds = time.monotonic() - self._begun
        return DemoResult(score(expected, reported), faults, report, len(expected), example, seconds)

    def _gaps(self) -> list[tuple[str, int, int]]:
        """When the sampler got no answer of a broker, or of any: the pause and the kill of a broker can cause this."""
        lake = Lake.open(self._folder / "lake")
        rows = connect(threads=1).execute(
            f"""SELECT DISTINCT broker_name, coalesce(seen_ms, 0), sampled_ms
            FROM ({relation_of(lake["samples"])}) AS samples WHERE what = 'GAP'"""
        )
        return [(str(broker), int(first_ms), int(end_ms)) for broker, first_ms, end_ms in rows.fetchall()]


def _show(console: Console, outcome: DemoResult, folder: Path, draw: Draw) -> None:
    lake = folder / "lake"
    answers = Answers(lake=lake)
    for part in (draw.report(answers.report(now_ms())), show_faults(outcome.faults), show_scores(outcome.scores)):
        console.print()
        console.print(part)
    console.print(f"[dim]{CHANGED}[/]", highlight=False)
    if outcome.example:
        console.print()
        console.print(draw.trace(answers.trace(outcome.example, now_ms())))
        console.print(
            f"\nLook up a message:  mqtrail trace {outcome.example} --lake {lake}", highlight=False, soft_wrap=True
        )
    console.print(f"Open the console:  mqtrail console --lake {lake}", highlight=False, soft_wrap=True)
    console.print(f"Logs of brokers and clients:  {folder / 'brokers'}/*.log  {folder / CLIENT_LOG}", highlight=False)
    console.print(f"{outcome.message_count} messages, {outcome.seconds:.0f} s in total", highlight=False)


def _json(outcome: DemoResult) -> dict[str, object]:
    return {
        "messages": outcome.message_count,
        "seconds": round(outcome.seconds, 1),
        "scores": [{**asdict(row), "precision": row.precision, "recall": row.recall} for row in outcome.scores],
        "faults": [asdict(fault) for fault in outcome.faults],
        "pipeline": asdict(outcome.report),
        "changed": CHANGED,
    }
