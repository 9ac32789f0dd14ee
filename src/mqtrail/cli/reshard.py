"""`backlog reshard`: copy what a group has not consumed into a topic with more queues."""

from __future__ import annotations

import asyncio
import re
import shlex
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .config import Config, load
from .exits import Exit, UsageError
from .operate import DryRun, Yes, confirm_change, table
from .options import ConfigFile, Json, Namesrv
from .output import progress, say, show_json, warn

if TYPE_CHECKING:
    from mqtrail.answers.backlog import ReshardPlan, ReshardProgress, ReshardWish

PRODUCER_GROUP = "mqtrail-backlog"


def backlog_reshard(
    group: Annotated[str, typer.Argument(help="Consumer group.")],
    topic: Annotated[str, typer.Option("--topic", help="Topic whose backlog is copied.")],
    to: Annotated[str, typer.Option("--to", metavar="NEW_TOPIC", help="Topic to copy to; created if it is missing.")],
    queues: Annotated[
        int, typer.Option("--queues", min=1, max=1024, help="Number of its queues on each broker of the topic.")
    ],
    key: Annotated[
        str,
        typer.Option("--key", help="Property with the order key. [default: __SHARDINGKEY, or else KEYS]"),
    ] = "",
    state: Annotated[
        Path | None,
        typer.Option(
            "--progress", readable=False, help="Progress file. [default: backlog-reshard-GROUP-TOPIC-NEW_TOPIC.json]"
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Copy unconsumed messages of a group to a topic with more queues, in order by key. Repeat it to continue."""
    from mqtrail.answers.backlog import ReshardWish
    from mqtrail.wire import validate_topic

    validate_topic(to)
    names = (re.sub(r"[^A-Za-z0-9_-]", "_", one) for one in (group, topic, to))
    path = state or Path(f"backlog-reshard-{'-'.join(names)}.json")
    wish = ReshardWish(group=group, topic=topic, target=to, queue_count=queues, key_property=key)
    run = _Run(load(config), namesrv, wish, path, dry_run, yes, json)
    if dry_run:
        return asyncio.run(_reshard(run))
    with _alone(path):
        return asyncio.run(_reshard(run))


@dataclass(frozen=True, slots=True)
class _Run:
    """The options of one run."""

    settings: Config
    namesrv: str | None
    wish: ReshardWish
    path: Path
    dry_run: bool
    yes: bool
    json: bool


def _alone(path: Path) -> AbstractContextManager[None]:
    """Keep other processes from the progress file. UsageError: one has it."""
    from mqtrail.net import hold_lock

    taken = UsageError(f"found another run with the progress file {str(path)!r}, expected to be alone")
    return hold_lock(path.with_name(f"{path.name}.lock"), taken)


async def _reshard(run: _Run) -> int:
    from mqtrail.answers.backlog import ReshardRefused, ReshardRun, begin_reshard, plan_reshard, read_progress
    from mqtrail.client import Admin, Producer

    address = run.settings.namesrv(run.namesrv)
    # Without retries: a send whose answer is lost must not be sent again before the target was looked at.
    sending = replace(run.settings.client("producer"), retry_count=0, degrade=False, auto_batch=False)
    async with Admin(address, config=run.settings.room("client")) as admin:
        with progress("querying the brokers", enabled=not run.json):
            known = read_progress(run.path)
            plan = await plan_reshard(admin, run.wish, known)
        if not run.json:
            _draw(plan)
        if run.dry_run:
            if run.json:
                show_json(asdict(plan) | {"count": plan.count, "copied_count": 0})
            else:
                say("nothing was changed")
            return Exit.OK
        if plan.members:
            raise ReshardRefused(
                f"found members of {plan.group_name!r} that read {plan.topic!r}, {', '.join(plan.members)}: they would "
                "consume messages that are copied. Stop them, and run it again"
            )
        confirm_change(f"copy {plan.count} messages from {plan.topic!r} to {plan.target!r}", run.yes)
        async with Producer(PRODUCER_GROUP, address, config=sending) as producer:
            with progress(f"copied 0 of {plan.count}", enabled=not run.json) as shown:

                def saved(now: ReshardProgress) -> None:
                    if shown is not None:
                        shown.update(shown.task_ids[0], description=f"copied {now.copied_count} messages")

                state = known or await begin_reshard(admin, producer, plan, run.path)
                await ReshardRun(admin, producer, state, run.path, saved).copy(plan)
    return _report(run, plan, state)


def _draw(plan: ReshardPlan) -> None:
    rows = [(one.place, one.next_offset, one.end_offset, one.count) for one in plan.sources]
    table(("queue", "from offset", "to", "messages"), rows, f"{plan.group_name} on {plan.topic}: {plan.count} messages")
    what = "is created" if plan.is_new else "exists"
    where = f"{plan.queue_count} queues on each of {', '.join(plan.brokers)}"
    say(f"target: {plan.target} ({what}), {where}{'; continues where the last run ended' if plan.is_resumed else ''}")
    keys = plan.keys
    found = ", ".join(f"{count} by {name}" for name, count in keys.by_property.items())
    different = f"{keys.without} without; {keys.distinct} different"
    say(f"order keys of the first {keys.looked_at}: {found or 'none'}, {different}")
    if keys.largest is not None and keys.largest > 1 / (plan.queue_count * len(plan.brokers)):
        warn(f"one key has {keys.largest:.0%} of them: they stay in one queue, so that queue will be hot")
    if keys.without:
        warn("messages without an order key are spread over the queues, and keep no order")
    if plan.members:
        warn(f"members that read {plan.topic} must be stopped before: {', '.join(plan.members)}")


def _report(run: _Run, plan: ReshardPlan, state: ReshardProgress) -> int:
    at = [f"{place}={offset}" for place, offset in sorted(state.next.items())]
    after = ("mqtrail", "offset", "set", plan.group_name, plan.topic, *at)
    value: dict[str, Any] = asdict(plan) | asdict(state) | {"count": plan.count, "after": list(after)}
    if run.json:
        show_json(value)
    else:
        say(f"{state.copied_count} messages of {plan.topic} are in {plan.target}; progress: {run.path}")
        if state.expired_count:
            warn(f"{state.expired_count} messages expired before they were copied")
        say("next: stop the producers, run this again, then let producers and members use the new topic")
        say(f"if members still read {plan.topic}, move them behind the copies: {shlex.join(after)}")
    if state.left_out_count:
        warn(f"{state.left_out_count} messages could not be copied, the first: {', '.join(state.left_out[:3])}")
        return Exit.FAILED
    return Exit.OK
