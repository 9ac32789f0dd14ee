"""The gate before a cut-over: go or no-go, each with its reasons, from the files of the folder and the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mqtrail.client import Admin
from mqtrail.clock import now_ms
from mqtrail.trail import ProofResult

from .groups import bridge_of, group_file
from .journal import waiting_files
from .results import result_files
from .state import COMPARE, RESULTS, content_of, is_running, read_json

ENDS_FRESH_MS: Final = 30_000  # how old the bridge's knowledge of Kafka's ends may be


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """What must hold. groups: of RocketMQ, that take over. lag_max: offsets.

    compare_age_ms: of the last comparisons, of topics and of results.
    """

    folder: Path
    groups: tuple[str, ...] = ()
    lag_max: int = 0
    compare_age_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class GateCheck:
    """A condition. found: what was found. remedy: what to do if it does not hold."""

    name: str
    is_ok: bool
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class GateResult:
    """Go only if each check holds."""

    is_go: bool
    checks: list[GateCheck]


async def gate(config: GateConfig, admin: Admin) -> GateResult:
    """Check everything; nothing is changed. MQError: there is no bridge, or a file is damaged. OSError."""
    now = now_ms()
    checks = [*_bridge(config, now), _compare(config, now), _copies(config.folder), *_results(config, now)]
    for group in config.groups:
        checks += await _group(config.folder, group, admin)
    return GateResult(all(one.is_ok for one in checks), checks)


def _bridge(config: GateConfig, now: int) -> Sequence[GateCheck]:
    state, _ = bridge_of(config.folder)
    running = is_running(config.folder)
    lag, age_ms = state.lag(), now - state.ends_ms
    is_fresh = lag is not None and age_ms <= ENDS_FRESH_MS
    shown = "unknown" if lag is None else f"{lag} offsets, {age_ms / 1000:.0f} s ago"
    lost, skipped = sum(state.lost.values()), len(state.skipped)
    return (
        GateCheck(
            "bridge runs",
            running,
            "yes" if running else "no",
            f"start `mqtrail migrate bridge {state.topic}`: until producers have moved, Kafka has new records",
        ),
        GateCheck(
            "bridge's lag",
            is_fresh and lag is not None and lag <= config.lag_max,
            shown,
            f"wait until it is at most {config.lag_max}, as of the last {ENDS_FRESH_MS // 1000} s",
        ),
        GateCheck(
            "nothing left out",
            not lost and not skipped,
            f"{skipped} skipped, {lost} lost",
            "bring these records over by hand, or decide to go without them",
        ),
    )


def _compare(config: GateConfig, now: int) -> GateCheck:
    path, writer = config.folder / COMPARE, "`mqtrail migrate compare`"
    found = read_json(path, writer)
    if found is None:
        return GateCheck("comparison", False, "none", "run `mqtrail migrate compare`")
    with content_of(path, writer):
        return _compared(config, found, now)


def _copies(folder: Path) -> GateCheck:
    """Copies of tees that the other side does not have. Those on their way of a running tee are not among them."""
    files = waiting_files(folder)
    count, running = sum(one.count for one in files), sum(1 for one in files if one.is_open)
    shown = f"{count} in {len(files)} files, {running} of them of running tees" if files else "none"
    return GateCheck(
        "failed copies",
        not count,
        shown,
        "run `mqtrail migrate copies --send`; those of a running tee: call its `resend`, or close it first",
    )


def _results(config: GateConfig, now: int) -> Sequence[GateCheck]:
    """The comparison of results, if handlers record any."""
    if not result_files(config.folder):
        return ()
    path, writer = config.folder / RESULTS, "`mqtrail migrate results`"
    found = read_json(path, writer)
    if found is None:
        return (GateCheck("results of handlers", False, "not compared", "run `mqtrail migrate results`"),)
    with content_of(path, writer):
        is_ok, shown = _no_difference(found, config.compare_age_ms, now)
    return (
        GateCheck(
            "results of handlers",
            is_ok,
            shown,
            "run `mqtrail migrate results` until it finds none; remove the files results-… of handlers that no longer "
            f"count; it counts for {config.compare_age_ms / 1000:.0f} s",
        ),
    )


def _compared(config: GateConfig, found: dict[str, Any], now: int) -> GateCheck:
    is_ok, shown = _no_difference(found, config.compare_age_ms, now)
    return GateCheck(
        "comparison",
        is_ok and found["pending"] <= config.lag_max,
        shown,
        f"run `mqtrail migrate compare` until it finds none, with at most {config.lag_max} not compared yet; it counts "
        f"for {config.compare_age_ms / 1000:.0f} s",
    )


def _no_difference(found: dict[str, Any], age_max_ms: int, now: int) -> tuple[bool, str]:
    """Return whether a comparison is young, found no difference, and something equal; and what it is."""
    age_ms = now - found["at_ms"]
    outcome = ProofResult(found["outcome"])
    is_part = found["since_ms"] is not None or found["until_ms"] is not None
    accepted = f", accepted: {', '.join(found['accepted'])}" if found["accepted"] else ""
    matched, pending = found["matched"], found["pending"]
    part = ", of a range of time" if is_part else ""
    is_ok = outcome == ProofResult.NONE and age_ms <= age_max_ms and matched > 0
    shown = f"differences: {outcome.words}, {matched} equal, {pending} not compared yet, {age_ms / 1000:.0f} s ago"
    return is_ok, f"{shown}{part}{accepted}"


async def _group(folder: Path, group: str, admin: Admin) -> Sequence[GateCheck]:
    path, writer = group_file(folder, group), "`mqtrail migrate offsets --apply`"
    content = read_json(path, writer)
    with content_of(path, writer):
        is_ok, shown = _offsets(content)
    members = await admin.group_connections(group)
    count = len({one.client_id for found in members.found.values() for one in found.connection_set})
    unknown = f", {len(members.failures)} brokers did not answer" if members.failures else ""
    return (
        GateCheck(
            f"offsets of {group}",
            is_ok,
            shown,
            f"run `mqtrail migrate offsets --apply` for {group}, with the bridge at the end; what is lost can be "
            "consumed in Kafka first",
        ),
        GateCheck(
            f"members of {group}",
            count > 0,
            f"{count}{unknown}",
            "start its consumers on RocketMQ, after its offsets are written",
        ),
    )


def _offsets(content: dict[str, Any] | None) -> tuple[bool, str]:
    """Return whether the last result of a group is complete, and what it is."""
    if content is None or "before_start" not in content:  # one of an earlier version does not tell
        return False, "none"
    queues = content["queues"]
    failed = sum(1 for one in queues if one["error"])
    kept = [one for one in queues if one.get("is_kept") and one.get("written") != one["after"]]
    unknown = sum(1 for one in kept if one.get("written") is None)  # what it has consumed
    behind, lost = content["behind"], content["before_start"] + sum(one["expired"] for one in queues)
    shown = f"{len(queues)} queues, {failed} failed, {len(kept)} kept further, {behind} not bridged, {lost} lost"
    return not (failed or unknown or behind or lost), shown
