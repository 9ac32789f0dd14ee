"""Thresholds of the judgement, with the defaults of docs/design/verdicts.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from mqtrail.wire import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The thresholds of a judgement. Its only other inputs are its evidence and its time. Times are ms."""

    send_slow_ms: int = setting(1_000, "minimum time from the first attempt to the acknowledgement for SEND_SLOW")
    consume_slow_ms: int = setting(1_000, "minimum handler time for CONSUMED_SLOW")
    duplicate_send_ms: int = setting(
        10_000, "maximum time between two equal messages with keys for the later one to be a DUPLICATE_SEND"
    )
    delivered_late_ms: int = setting(3_000, "minimum delay after the due time for DELIVERED_LATE")
    hung_ms: int = setting(45_000, "time after which a delivery without a result is HUNG; before, it is IN_FLIGHT")
    hung_p99_factor: int = setting(
        3, "multiple of the group's 99th percentile after which a delivery is HUNG, if that is longer than hung_ms"
    )
    hung_p99_samples: int = setting(
        100, "minimum number of completed deliveries of a group for its percentile to apply"
    )
    trace_delay_ms: int = setting(
        10_000, "maximum delay of a trace record on its way to the lake; newer records are not judged missing"
    )
    state_age_ms_max: int = setting(
        120_000, "maximum age of samples of offsets and clients at the time of judgement; older ones prove nothing"
    )
    sample_pause_ms_max: int = setting(
        15_000,
        "maximum time between two samples of one run of the sampler; a longer pause is a gap, and `pipeline` raises it "
        "to three sample intervals",
    )
    next_attempt_ms_max: int = setting(
        2 * 3_600_000 + 600_000,
        "time that a failed delivery without a further copy is RETRYING (the longest delay level is 2 h)",
    )
    loss_window_ms: int = setting(
        600_000, "time after a message became visible within which a loss of trace records is named as a likely reason"
    )

    def values(self) -> dict[str, int]:
        """Return every setting by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def changed(self) -> dict[str, int]:
        """Return the settings that differ from their defaults, for reports."""
        return changed_settings(self.values())


def changed_settings(values: Mapping[str, int]) -> dict[str, int]:
    """Return the settings in values that differ from the defaults of this version. values: of any version."""
    defaults = Settings().values()
    return {name: value for name, value in values.items() if value != defaults.get(name)}
