"""The whole judgement as stages in order: from attempts and samples to trajectories and verdicts.

Inputs: attempts (partial or merged rows), client_records, group_offsets, clients, subscriptions, queue_ranges, samples,
gaps, unread_ranges, group_folds (counts of earlier judgements; empty if all messages are judged), sent_before (`alike`)
and overtaken (`overtaking`). Results: trajectories, verdicts, latency_minute, key_index, open_ids. Intermediate
relations such as `resolved` and `messages` can be read too.

A judgement of some messages runs the same stages in three parts: facts from their own rows (`fact_stages`); the state
of the cluster (`state_stages`), from which `due` finds the other messages to judge; the verdicts (`verdict_stages`).
"""

from __future__ import annotations

from .alike import SENT_BEFORE
from .batches import batch_stages
from .broadcasts import broadcast_clients_stage, broadcasts_stage
from .companions import companion_stages
from .context import context_stages, topic_groups_stage
from .filters import filter_stages
from .folds import fold_counts_stage, fold_stages, given_fold_stages
from .group_facts import group_stages, hand_over_stages
from .judgement import group_losses_stage, judgement_stages
from .messages import message_fact_stages, message_stages
from .overtaking import OVERTAKEN
from .repeats import repeat_stages
from .samples import SAMPLED
from .settings import Settings
from .stages import Stage
from .trajectories import trajectory_stages
from .watches import watch_stages

READ_WHOLE = ("client_records", *SAMPLED, "gaps", "unread_ranges")
"""Names of the relations that every judgement reads as a whole."""
COMPARED = (SENT_BEFORE, OVERTAKEN)
"""Inputs that are found before a judgement, because the rows of other messages decide them."""
INPUTS = ("attempts", *READ_WHOLE, "group_folds", *(relation.name for relation in COMPARED))
"""Names of the relations that a judgement reads. Those besides READ_WHOLE are made for the messages to judge."""


def judge(
    as_of_ms: int,
    settings: Settings | None = None,
    *,
    batches: bool = True,
    only_until: bool = False,
    counted: bool = False,
) -> list[Stage]:
    """Return the stages of one judgement as of as_of_ms, in order. Samples later than that are not read.

    batches=False: do not join batch ids, since no row of attempts has a batch_id. only_until: exclude attempts that
    begin later than as_of_ms. counted: group_folds counts the messages to judge, too.
    """
    limits = settings or Settings()
    return [
        *context_stages(as_of_ms, limits),
        *_own_stages(as_of_ms if only_until else None, batches),
        *(given_fold_stages(limits) if counted else fold_stages(limits)),
        topic_groups_stage(as_of_ms, limits),
        broadcast_clients_stage(limits),
        group_losses_stage(),
        *verdict_stages(as_of_ms, limits, only_until=only_until),
    ]


def fact_stages(until_ms: int | None, batches: bool) -> list[Stage]:
    """From attempts to the facts from each message's own rows, and `fold_counts`, their part of the folds."""
    return [*_own_stages(until_ms, batches), fold_counts_stage()]


def state_stages(as_of_ms: int, settings: Settings) -> list[Stage]:
    """The state of the cluster and its groups, from samples and from group_folds, which count every message."""
    return [
        *context_stages(as_of_ms, settings),
        *given_fold_stages(settings),
        topic_groups_stage(as_of_ms, settings),
        broadcast_clients_stage(settings),
        group_losses_stage(),
    ]


def verdict_stages(as_of_ms: int, settings: Settings, *, only_until: bool = False) -> list[Stage]:
    """From facts and state to the results."""
    return [
        *repeat_stages(),
        *message_stages(as_of_ms, settings),
        *group_stages(),
        *filter_stages(),
        broadcasts_stage(),
        *judgement_stages(as_of_ms, settings),
        *trajectory_stages(as_of_ms, settings),
        *watch_stages(as_of_ms, settings, only_until=only_until),
        *companion_stages(),
    ]


def _own_stages(until_ms: int | None, batches: bool) -> list[Stage]:
    return [*batch_stages(until_ms, batches), *message_fact_stages(), *hand_over_stages()]
