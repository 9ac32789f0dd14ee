"""The whole definition: from attempts and samples to trajectories and verdicts, as stages in order.

Inputs: attempts (partial or merged rows), trace_events (only records about clients are read), group_offsets, clients,
subscriptions, queue_ranges, samples, gaps. Results: trajectories, verdicts, latency_minute, key_index. `resolved`,
`messages` and others come in between and can be read too.
"""

from __future__ import annotations

from .batches import batch_stages
from .companions import companion_stages
from .context import context_stages
from .groups import group_stages
from .judgement import judgement_stages
from .messages import message_stages
from .samples import SAMPLED
from .settings import Settings
from .stages import Stage
from .trajectories import trajectory_stages

INPUTS = ("attempts", "trace_events", *SAMPLED, "gaps")
"""Names of the relations that a judgement reads."""


def judge(
    as_of_ms: int, settings: Settings | None = None, *, batches: bool = True, only_until: bool = False
) -> list[Stage]:
    """Return the stages of one judgement as of as_of_ms, in order. Samples later than that are not read.

    batches=False skips the joining of batch ids (no row of attempts has a batch_id). only_until leaves out attempts
    that begin later than as_of_ms.
    """
    limits = settings or Settings()
    return [
        *context_stages(as_of_ms, limits),
        *batch_stages(as_of_ms if only_until else None, batches),
        *message_stages(as_of_ms, limits),
        *group_stages(limits),
        *judgement_stages(as_of_ms, limits),
        *trajectory_stages(as_of_ms, limits),
        *companion_stages(),
    ]
