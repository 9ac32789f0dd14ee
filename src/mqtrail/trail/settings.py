"""Thresholds of the judgement, with the defaults of docs/design/verdicts.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that a judgement depends on beside its evidence and its instant. Times are milliseconds."""

    send_slow_ms: int = 1_000
    """SEND_SLOW from here, first try to acknowledgement."""
    consume_slow_ms: int = 1_000
    """CONSUMED_SLOW from here."""
    delivered_late_ms: int = 3_000
    """DELIVERED_LATE from here past due."""
    hung_ms: int = 45_000
    """A hand-over without an end is HUNG from here; before, IN_FLIGHT."""
    hung_p99_factor: int = 3
    """…or from this many times the group's 99th percentile, where that is longer."""
    hung_p99_samples: int = 100
    """Hand-overs a group must have ended before its percentile counts."""
    trace_delay_ms: int = 10_000
    """How late a trace record may reach the lake: what is younger is not judged missing."""
    state_age_ms_max: int = 120_000
    """Samples of offsets and clients older than this, at the instant of judgement, prove nothing about it."""
    next_attempt_ms_max: int = 2 * 3_600_000 + 600_000
    """A failed hand-over without any further copy is still RETRYING until here (the longest delay level is 2 h)."""
    loss_window_ms: int = 600_000
    """A loss of trace records this long after a message became visible is still named as a likely reason."""

    def values(self) -> dict[str, int]:
        """Every setting by its name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def changed(self) -> dict[str, int]:
        """The settings that differ from their defaults, for reports."""
        return changed_settings(self.values())


def changed_settings(values: Mapping[str, int]) -> dict[str, int]:
    """Return those of some settings, of whatever version, that are not this version's defaults."""
    defaults = Settings().values()
    return {name: value for name, value in values.items() if value != defaults.get(name)}
