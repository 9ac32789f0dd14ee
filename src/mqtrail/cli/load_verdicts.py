"""The verdicts of a load from its trace: the pipeline judges its messages, and the counts are compared."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqtrail.clock import now_ms
from mqtrail.wire import MQError

from .config import Config, Layer
from .output import warn

if TYPE_CHECKING:
    from mqtrail.answers import Answers
    from mqtrail.load import LoadReason, LoadReport
    from mqtrail.pipeline import JobConfig

BEGIN = {"starting_offsets": "latest"}
"""A new lake reads what is sent from its first cycle on: not the history of the cluster."""


@dataclass(frozen=True, slots=True)
class ComparedCount:
    """A count of the generator beside that of the trace."""

    what: str
    generator: int
    trace: int


class TraceJudge:
    """Judges the messages of one run in a lake."""

    def __init__(self, job: JobConfig) -> None:
        self._job = job

    @classmethod
    def open(cls, stack: ExitStack, settings: Config, namesrv: str | None, lake: str | None, topic: str) -> TraceJudge:
        """Return a judge with this lake; None: a temporary one that the stack deletes."""
        folder = settings.lake(lake) if lake else None
        if folder is None:
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="mqtrail-load-"))
            folder = Path(temporary) / "lake"
        job: JobConfig = settings.room(
            "pipeline",
            Layer("flag", {**BEGIN, "topics": [topic], "clusters": []}),
            fixed={
                "namesrv": settings.namesrv(namesrv),
                "lake": folder,
                "instance": settings.room("client"),
                "settings": settings.room("judge"),
                "session": dataclasses.replace(settings.room("spark"), spark_conf=settings.spark_conf()),
            },
        )
        return cls(job)

    def begin(self) -> None:
        """Note where the queues end now. LakeError, MQError, and ModuleNotFoundError without Spark."""
        self._cycle()

    def judged(self, report: LoadReport) -> LoadReport:
        """Return the report with the verdicts of the trace beside its own counts."""
        from mqtrail.load import LoadReason, LoadVerdict, decided

        try:
            problems = self._cycle()
            found = _counted(self._answers(), report)
        except MQError as error:
            text = f"the trace could not be judged: {error}"
            return decided(report, (LoadReason("NOT_JUDGED", LoadVerdict.UNKNOWN, text),))
        compared = _compared(report, found)
        value = {
            "lake": str(self._job.lake),
            "messages": found["messages"],
            "complete": found["complete"],
            "codes": found["codes"],
            "compared": [dataclasses.asdict(one) for one in compared],
            "problems": problems,
        }
        return decided(replace(report, verdicts=value), tuple(_reasons(compared, found)))

    def _cycle(self) -> list[str]:
        from mqtrail.pipeline import PipelineJob

        with PipelineJob(self._job) as job:
            found = job.once()
        for problem in found.problems:
            warn(problem)
        return list(found.problems)

    def _answers(self) -> Answers:
        from mqtrail.answers import Answers

        return Answers(self._job.lake, settings=self._job.settings)


def _counted(answers: Answers, report: LoadReport) -> dict[str, Any]:
    """Return what the lake has of the run's messages."""
    from mqtrail.load import tag_of

    own = f"SELECT msg_id FROM messages WHERE topic = '{report.topic}' AND tag = '{tag_of(report.run_id)}'"
    messages = f"""SELECT count(*), count(acked_at), count(*) FILTER (knowledge = 'COMPLETE'),
        count(*) FILTER (acked_at IS NULL) FROM messages WHERE msg_id IN ({own})"""
    groups = f"""SELECT count(*) FILTER (successes > 0), coalesce(sum(greatest(deliveries - 1, 0)), 0)
        FROM group_results WHERE group_name = '{report.group}' AND msg_id IN ({own})"""
    codes = f"""SELECT code, count(DISTINCT msg_id) FROM verdicts WHERE msg_id IN ({own})
        AND group_name IN ('', '{report.group}') GROUP BY code ORDER BY code"""
    [(count, acknowledged, complete, unacknowledged)] = _rows(answers, messages)
    [(consumed, repeated)] = _rows(answers, groups)
    return {
        "messages": int(count),
        "acknowledged": int(acknowledged),
        "unacknowledged": int(unacknowledged),
        "complete": int(complete),
        "consumed": int(consumed),
        "repeated": int(repeated),
        "codes": {str(code): int(times) for code, times in _rows(answers, codes)},
    }


def _rows(answers: Answers, text: str) -> list[tuple[Any, ...]]:
    from mqtrail.answers import rows_of

    with answers.query(text, now_ms()) as found:
        return [tuple(row) for row in rows_of(found)]


def _compared(report: LoadReport, found: dict[str, Any]) -> list[ComparedCount]:
    counts = report.counts
    compared = [
        ComparedCount("acknowledged", counts.acknowledged, found["acknowledged"]),
        ComparedCount("not acknowledged", counts.sent - counts.acknowledged, found["unacknowledged"]),
    ]
    if report.is_consumed:
        compared.append(ComparedCount("consumed", counts.consumed, found["consumed"]))
        compared.append(ComparedCount("repeated", counts.repeated, found["repeated"]))
        lost = counts.unread if report.is_read_to_end else 0
        compared.append(ComparedCount("lost", lost, found["codes"].get("LOST", 0)))
    return compared


def _reasons(compared: list[ComparedCount], found: dict[str, Any]) -> Iterator[LoadReason]:
    """Yield why the trace does not confirm the counts. A count that is known in part is no contradiction."""
    from mqtrail.load import LoadReason, LoadVerdict

    different = [one for one in compared if one.generator != one.trace]
    if not different:
        return
    text = ", ".join(f"{one.what} {one.generator}, by the trace {one.trace}" for one in different)
    missing = found["messages"] - found["complete"]
    if missing or found["messages"] < compared[0].generator:
        yield LoadReason(
            "TRACE_INCOMPLETE",
            LoadVerdict.UNKNOWN,
            f"the trace does not have everything ({found['messages']} messages, {missing} of them incomplete): {text}",
        )
    else:
        yield LoadReason("TRACE_DISAGREES", LoadVerdict.FAILED, f"the trace has other counts: {text}")
