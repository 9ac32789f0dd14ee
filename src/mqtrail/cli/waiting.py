"""`message delayed`, `transaction list` and `resume`, `group pops`: what waits inside brokers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from .config import load
from .exits import Exit
from .operate import DryRun, Yes, admin_of, confirm_change, show_plan, table
from .options import ConfigFile, Json, Namesrv
from .output import progress, say, show_json, warn

if TYPE_CHECKING:
    from pathlib import Path

    from mqtrail.answers import ClusterAnswers, DelayedAnswer, PopsAnswer, TransactionsAnswer

A = TypeVar("A", "DelayedAnswer", "TransactionsAnswer", "PopsAnswer")
Rows = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Maximum number of messages that are listed.")]
TIME = "%Y-%m-%d %H:%M:%S"


def message_delayed(limit: Rows = 20, namesrv: Namesrv = None, config: ConfigFile = None, json: Json = False) -> int:
    """List the messages that wait for their time, at delay levels and in timers, and count them."""
    return _shown(lambda cluster: cluster.delayed(limit), namesrv, config, json, _draw_delayed)


def transaction_list(limit: Rows = 20, namesrv: Namesrv = None, config: ConfigFile = None, json: Json = False) -> int:
    """List half messages that wait for the end of their transaction, and those that brokers gave up."""
    return _shown(lambda cluster: cluster.transactions(limit), namesrv, config, json, _draw_transactions)


def group_pops(limit: Rows = 20, namesrv: Namesrv = None, config: ConfigFile = None, json: Json = False) -> int:
    """List the popped messages that are not acknowledged, and when they become visible again (brokers 5.x)."""
    return _shown(lambda cluster: cluster.pops(limit), namesrv, config, json, _draw_pops)


def transaction_resume(
    place: Annotated[list[str], typer.Argument(help="Place of a half message, as `transaction list` shows it.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Have brokers ask again about half messages that they gave up."""
    from mqtrail.answers.changes import Fate, ResumeChecks

    settings = load(config)
    change = ResumeChecks(places=tuple(place))
    if dry_run:
        return show_plan(change, settings, namesrv, json)
    confirm_change(f"put {len(place)} half messages back, so that their producers are asked again", yes)
    with admin_of(settings, namesrv) as admin:
        change.plan(admin)
        outcomes = list(change.perform(admin))
    if json:
        show_json({"outcomes": [{"target": one.target, "fate": one.fate, "detail": one.detail} for one in outcomes]})
    else:
        for one in outcomes:
            say(f"{one.target}: {'put back' if one.fate is Fate.DONE else one.detail}")
    return Exit.OK if all(one.fate is Fate.DONE for one in outcomes) else Exit.FAILED


def _shown(
    ask: Callable[[ClusterAnswers], A],
    namesrv: str | None,
    config: Path | None,
    json: bool,
    draw: Callable[[A], None],
) -> int:
    """Print an answer about the brokers; return exit code 3 if something is unknown."""
    from mqtrail.answers import ClusterAnswers, as_json

    settings = load(config)
    cluster = ClusterAnswers(settings.namesrv(namesrv), settings.room("client"))
    with closing(cluster), progress("querying the brokers", enabled=not json):
        answer = ask(cluster)
    if json:
        show_json(as_json(answer))
    else:
        draw(answer)
        for words in answer.scope.omissions:
            warn(words)
    return Exit.CANNOT_LOOK if answer.scope.omissions else Exit.OK


def _draw_delayed(answer: DelayedAnswer) -> None:
    from mqtrail.answers import duration_text

    rows = [
        (_at(one.due_ms), one.msg_id, one.keys, one.topic, _kind(one.level, one.is_recalled), one.broker_name)
        for one in answer.messages
    ]
    table(("due (UTC)", "id", "keys", "topic", "kind", "broker"), rows)
    counts = [
        (one.broker, f"level {one.level}", duration_text(one.delay_ms), one.message_count) for one in answer.levels
    ]
    counts += [(one.broker, one.topic, "", one.message_count) for one in answer.timers]
    table(("broker", "level or topic of timers", "delay", "messages"), counts)
    total = "?" if answer.waiting_count is None else f"{answer.waiting_count}{'+' if answer.is_lower_bound else ''}"
    say(f"{total} messages wait, {len(answer.messages)} are listed")


def _kind(level: int | None, is_recalled: bool) -> str:
    kind = "timer" if level is None else f"level {level}"
    return f"{kind}, recalled" if is_recalled else kind


def _draw_transactions(answer: TransactionsAnswer) -> None:
    for halves, words in ((answer.open, "waits"), (answer.given_up, "given up")):
        rows = [
            (words, one.msg_id, one.keys, one.topic, one.producer_group, _at(one.born_ms), one.check_count, one.place)
            for one in halves
        ]
        if rows:
            headings = ("state", "id", "keys", "topic", "producer group", "sent (UTC)", "checks", "place")
            table(headings, rows)
    for broker in answer.brokers:
        opened, given_up = (("?" if one is None else one) for one in (broker.open_count, broker.given_up_count))
        say(f"{broker.broker}: {opened} open, {given_up} given up")


def _draw_pops(answer: PopsAnswer) -> None:
    rows = [(_at(one.visible_ms), one.group, one.place, _at(one.popped_ms)) for one in answer.messages]
    table(("visible again (UTC)", "group", "place", "popped (UTC)"), rows)
    for broker in answer.brokers:
        found = (broker.handed_out_count, broker.behind_count)
        held, behind = (("?" if one is None else one) for one in found)
        say(f"{broker.broker}: {held} handed out, revive log behind by {behind} records")


def _at(at_ms: int) -> str:
    from mqtrail.answers import moment_text

    return moment_text(at_ms, TIME)
