"""Thresholds of the search for incidents, and bounds of its work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentSettings:
    """codes: those of bad messages; None: the ones of severity warning and error, and long waits and wrong clocks."""

    codes: tuple[str, ...] | None = None
    wait_ms: int = 5_000
    """A wait for a handler from which on it is bad."""
    clock_ms: int = 500
    """How far the times of two hosts may contradict each other."""
    bad_count_min: int = 5
    """Units below which nothing is an incident."""
    lift_min: float = 3.0
    """How many times more frequent bad units must be under the conditions than elsewhere."""
    doubt: float = 0.001
    """Accepted chance that one of all tried conditions fits by accident."""
    lead_ms: int = 1_800_000
    """Good units before an episode that are compared too: as long as the episode, at most this."""
    bad_sample: int = 20_000
    good_sample: int = 60_000
    """Units of an episode that the search reads. The counts of what it finds are of all units."""
    beam_width: int = 4
    conditions_max: int = 3
    causes_max: int = 4
    """Explanations of one episode."""
    episodes_max: int = 24
    """Episodes that are searched, those with the most bad units first."""
    errors_max: int = 6
    """Error texts of one symptom that are kept apart."""
    examples: int = 5


MINUTE_MS = 60_000
