"""The definition, whole: from merged attempts and samples to trajectories and verdicts, as stages for an engine.

Inputs by name: attempts (partial or merged rows), trace_events (TraceBatch, TraceLoss and OffsetCommit rows are read),
group_offsets, clients, subscriptions, queue_ranges, gaps. Results by name: trajectories, verdicts, latency_minute,
key_index; on the way resolved and more.
"""

from __future__ import annotations

from collections.abc import Mapping

from mqtrail.trail.batches import batch_stages
from mqtrail.trail.companions import companion_stages
from mqtrail.trail.context import context_stages
from mqtrail.trail.groups import group_stages
from mqtrail.trail.judgement import judgement_stages
from mqtrail.trail.messages import message_stages
from mqtrail.trail.settings import Settings
from mqtrail.trail.stages import Nesting, Stage, counted
from mqtrail.trail.trajectories import trajectory_stages

INPUTS = ("attempts", "trace_events", "group_offsets", "clients", "subscriptions", "queue_ranges", "gaps")
"""Names of the relations a judgement reads."""


def judge(
    as_of_ms: int,
    nesting: Nesting,
    settings: Settings | None = None,
    *,
    batches: bool = True,
    inputs: Mapping[str, str] | None = None,
) -> list[Stage]:
    """The stages of one judgement as of as_of_ms, in order; samples later than that are not read.

    batches=False skips the joining of batch ids (no row of attempts has a batch_id). inputs renames relations of
    INPUTS. Rows later than as_of_ms are the caller's to leave out.
    """
    limits = settings or Settings()
    stages = [
        *context_stages(as_of_ms, limits),
        *batch_stages(batches),
        *message_stages(as_of_ms, limits),
        *group_stages(limits),
        *judgement_stages(as_of_ms, limits),
        *trajectory_stages(as_of_ms, limits, nesting),
        *companion_stages(),
    ]
    return counted(stages, inputs)
