"""Verdicts of clusters with random faults, compared with what really happened: nothing false is said in any way.

More seeds by hand: SEEDS=n.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.trail.fault_world import QUIET_MS, WAYS, Delivery, Group, Message, World

from mqtrail.lake import judge_rows

SEEDS = int(os.environ.get("SEEDS", "12"))
OF_CONSUMPTION = {"CONSUMED_SLOW", "CONSUMED_AFTER_RETRY", "DUPLICATE_DELIVERY", "DUPLICATE_PROCESSING"}


@dataclass(frozen=True)
class Truth:
    """States of a group that are right, of several that a scorer could choose, and the codes beside them.

    NOT_JUDGED: it need not be judged.
    """

    states: set[str]
    added: set[str]


NOT_JUDGED = ""


def idle(group: Group) -> str:
    """The state of a message that waits for the group."""
    return "WAITING" if any(client.alive for client in group.clients) else "NO_CONSUMER"


def of_group(world: World, msg: Message, group: Group) -> Truth:
    """What became of a message in a group."""
    handed = msg.deliveries.get(group.name, [])
    if not msg.visible:
        return Truth({idle(group), "FILTERED", NOT_JUDGED} if msg.due_ms is not None else {NOT_JUDGED}, set())
    if group.broadcast:
        return Truth(of_broadcast(handed), added(msg, group, handed) - {"DUPLICATE_DELIVERY", "DUPLICATE_PROCESSING"})
    states = of_deliveries(world, msg, group, handed) if handed else of_unread(world, msg, group)
    if not any(one.traced or one.client.alive for one in handed):
        states |= {idle(group)}  # the broker delivers it again: it does not know what the killed clients did
    if min((client.born for client in group.clients), default=world.end_ms) > msg.visible[0].store_ms - 100:
        states |= {NOT_JUDGED}  # the group came later
    return Truth(states, added(msg, group, handed))


def delivered_again(msg: Message, group: Group, handed: list[Delivery]) -> bool:
    """Whether a delivery was caused neither by a copy nor by a failure, after which an ordered group tries again."""
    rounds: Counter[int] = Counter()
    before = None
    for one in sorted(handed, key=lambda one: one.start_ms):
        failed = before is not None and before.outcome == "FAILED" and (before.end_ms or 0) <= one.start_ms
        failed = failed and msg.dead_ms.get(group.name, one.start_ms + 1) > one.start_ms
        rounds[one.times] += not (group.ordered and failed and rounds[one.times] >= len(msg.visible))
        before = one
    return max(rounds.values(), default=0) > len(msg.visible)


def added(msg: Message, group: Group, handed: list[Delivery]) -> set[str]:
    """Codes beside the state."""
    done = [one for one in handed if one.outcome == "OK"]
    begun = min((one.start_ms for one in done), default=0)
    failed_first = not group.broadcast and any(one.outcome == "FAILED" and (one.end_ms or 0) <= begun for one in handed)
    return {
        code
        for code, holds in (
            ("CONSUMED_SLOW", any((one.end_ms or 0) - one.start_ms >= 1_000 for one in done)),
            ("CONSUMED_AFTER_RETRY", done and (min(one.times for one in done) > 0 or failed_first)),
            ("DUPLICATE_DELIVERY", delivered_again(msg, group, handed)),
            ("DUPLICATE_PROCESSING", len(done) > 1),
        )
        if holds
    }


def of_broadcast(handed: list[Delivery]) -> set[str]:
    if any(one.outcome == "OK" for one in handed):
        return {"CONSUMED"}
    return {"IN_FLIGHT", "HUNG"} if handed else {NOT_JUDGED}


def of_deliveries(world: World, msg: Message, group: Group, handed: list[Delivery]) -> set[str]:
    if any(one.outcome == "OK" for one in handed):
        return {"CONSUMED", "DEAD_LETTERED"} if group.name in msg.dead_ms else {"CONSUMED"}
    if group.name in msg.dead_ms:
        return {"DEAD_LETTERED"}
    if msg.pending.get(group.name) or handed[-1].outcome == "FAILED":
        return {"RETRYING"}
    running = [one for one in handed if not one.outcome and one.client.alive]
    if running:
        return {"HUNG" if world.end_ms - running[-1].start_ms >= 45_000 else "IN_FLIGHT"}
    in_retry = handed[-1].times > 0 and not group.ordered  # it waits in the retry topic, of which nothing expires
    gone = (
        {idle(group)}
        if in_retry
        else {"EXPIRED"}
        if group.name in msg.expired
        else {"SKIPPED"}
        if group.name in msg.skipped
        else {idle(group)}
    )
    return gone | ({"RETRYING"} if any(one.outcome == "FAILED" for one in handed) else set())


def of_unread(world: World, msg: Message, group: Group) -> set[str]:
    visible_ms = msg.visible[0].store_ms
    there = any(
        client.born < visible_ms - 6_000 and (client.died is None or client.died > visible_ms + 6_000)
        for client in group.clients
    )
    if not group.accepts(msg) and there:
        return {"FILTERED"}
    doubt = set() if group.accepts(msg) else {"FILTERED", "WAITING", "NO_CONSUMER", "EXPIRED", "SKIPPED"}
    passed = all(group.offsets.get(copy.place, 0) > copy.offset for copy in msg.visible)
    was_moved = group.name in msg.skipped and passed and group.name not in msg.expired
    if any(copy.offset < world.minimum(copy.place) for copy in msg.visible) and not was_moved:
        return {"EXPIRED"} | doubt
    return ({"SKIPPED"} if group.name in msg.skipped and passed else {idle(group)}) | doubt


def of_send(msg: Message) -> set[str]:
    """The codes of the send, if all its records arrived."""
    unanswered = not (msg.acked or msg.degraded)
    return {
        code
        for code, holds in (
            ("SEND_OK", msg.acked),
            ("SEND_DEGRADED", msg.degraded),
            ("SEND_SLOW", msg.slow),
            ("SEND_RETRIED", msg.tries > 1),
            ("SEND_UNCERTAIN", unanswered and msg.uncertain),
            ("SEND_FAILED", unanswered and msg.failed),
        )
        if holds
    }


def of_message(world: World, msg: Message) -> set[str]:
    copies = [copy for copy in msg.visible if copy.kind == "NORMAL"]
    late = msg.due_ms is not None and msg.visible and msg.visible[0].store_ms - msg.due_ms >= 3_000
    return {
        code
        for code, holds in (
            (msg.half, msg.half),
            ("SCHEDULED", msg.due_ms is not None and not msg.visible and msg.due_ms > world.end_ms),
            ("DELIVERED_LATE", late),
            ("DUPLICATE_SEND", len(copies) > 1),
        )
        if holds
    }


class Verdicts:
    """Results of all worlds in all ways."""

    def __init__(self, worlds: list[World]) -> None:
        rows: dict[str, list[dict[str, Any]]] = {}
        for world in worlds:
            for way in WAYS:
                for name, some in world.evidence(way).items():
                    rows.setdefault(name, []).extend(some)
        judged = judge_rows(rows, worlds[0].as_of_ms)
        trajectories = judged.sql("SELECT * FROM trajectories").to_arrow_table().to_pylist()
        verdicts = judged.sql("SELECT * FROM verdicts").to_arrow_table().to_pylist()
        self.trajectories = {(row["cluster"], row["msg_id"]): row for row in trajectories}
        self.verdicts = {(row["cluster"], row["msg_id"], row["group_name"]): row for row in verdicts}


@dataclass(frozen=True)
class Claim:
    """A code that is said, or true, of a message in one way of looking."""

    world: World
    way: str
    msg: Message
    group: Group | None
    code: str
    said: bool
    true: bool
    whole: bool  # all records arrived, and nothing happened to it lately
    shown: str


def claims(worlds: list[World], found: Verdicts) -> Iterator[Claim]:
    """Every code that is said or true."""
    for world in worlds:
        for way in WAYS:
            for msg in world.messages:
                row = found.trajectories.get((f"{world.name} {way}", msg.id))
                if row is not None:
                    yield from of_one(world, way, msg, row, found)


def of_one(world: World, way: str, msg: Message, row: dict[str, Any], found: Verdicts) -> Iterator[Claim]:
    groups = {group: found.verdicts.get((row["cluster"], msg.id, group.name)) for group in world.groups}
    whole = msg.born < world.end_ms - QUIET_MS
    shown = f"{row['cluster']} {msg.id[-4:]}: {row['send_codes']} {row['message_codes']} {row['knowledge']}"
    shown += f" {row['reasons']} | {[(v['group_name'], v['codes'], v['reasons']) for v in groups.values() if v]}"
    wrong = False
    for codes, truth in (("send_codes", of_send(msg)), ("message_codes", of_message(world, msg))):
        said = set(filter(None, row[codes].split(",")))
        if msg.equal_to is not None:
            truth |= said & {"DUPLICATE_SEND"}
        wrong = wrong or said != truth
        for code in said | truth:
            yield Claim(world, way, msg, None, code, code in said, code in truth, whole and not msg.send_lost, shown)
    traced = not msg.send_lost
    for group, verdict in groups.items():
        handed = msg.deliveries.get(group.name, [])
        truth_of = of_group(world, msg, group)
        said = set(verdict["codes"].split(",")) if verdict else {NOT_JUDGED}
        state = verdict["state"] if verdict else NOT_JUDGED
        true = (truth_of.states & said or truth_of.states) | truth_of.added
        if "DEAD_LETTERED" in said:
            true -= {"CONSUMED_SLOW", "CONSUMED_AFTER_RETRY"}
        arrived = all(one.traced >= (2 if one.outcome else 1) for one in handed)
        traced = traced and arrived
        wrong = wrong or said - {NOT_JUDGED} != true - {NOT_JUDGED}
        if msg.visible and not world.traces(group.name) and state in ("WAITING", "NO_CONSUMER", "RETRYING"):
            assert row["knowledge"] == "INCOMPLETE", shown  # it may be handled: nothing of the group is traced
            continue
        late = max([0, *(copy.store_ms for copy in msg.copies), *(one.end_ms or one.start_ms for one in handed)])
        ends = f" {group.name} truth {truth_of} {[vars(one) | {'client': one.client.id} for one in handed]}"
        lately = late > world.end_ms - QUIET_MS
        for code in (said | true) - {NOT_JUDGED, "UNKNOWN"}:
            is_one = len(truth_of.states) == 1 or code in OF_CONSUMPTION
            known = whole and arrived and not lately and is_one
            yield Claim(world, way, msg, group, code, code in said, code in true, known, shown + ends)
    if row["knowledge"] == "COMPLETE":
        yield Claim(world, way, msg, None, "COMPLETE", said=True, true=traced and not wrong, whole=False, shown=shown)


@pytest.fixture(scope="module")
def every_claim() -> list[Claim]:
    worlds = [World(seed).run() for seed in range(SEEDS)]
    return list(claims(worlds, Verdicts(worlds)))


@pytest.mark.slow
def test_nothing_false_is_said(every_claim: list[Claim]) -> None:
    """Every code is true, live, once after the fact, and by the trace alone; and COMPLETE is complete."""
    said = [claim for claim in every_claim if claim.said]
    false = [claim for claim in said if not claim.true]
    assert len({(claim.way, claim.code) for claim in said}) > 80
    assert not false, f"{len(false)} of {len(said)}: " + "\n".join(f"{c.code}: {c.shown}" for c in false[:5])


@pytest.mark.slow
def test_what_is_traced_is_said(every_claim: list[Claim]) -> None:
    """Live, each true code is said of a message whose records all arrived, unless a client left that may explain it."""
    true = [claim for claim in every_claim if claim.way == "live" and claim.true and claim.whole]
    missed = [claim for claim in true if not claim.said]
    assert len({claim.code for claim in true}) > 15
    assert len(missed) <= len(true) / 100, "\n".join(f"{c.code}: {c.shown}" for c in missed[:5])
