"""Times and durations as people write them: `2026-11-21T10:00`, `2h`."""

from typing import Final

__all__ = ["END_MS", "FIRST_MS", "LONG_MAX", "parse_duration", "parse_moment"]

LONG_MAX: Final = (1 << 63) - 1
"""Highest number of Java's long, in which RocketMQ keeps times, offsets and sizes."""
FIRST_MS: Final = 0  # as the time of an offset: the first message
END_MS: Final = -1  # and the end of the queue

UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration(text: str) -> int:
    """Return the ms of `200ms`, `90s`, `15m`, `2h`, `3d`. ValueError."""
    text = text.strip()
    number, unit_ms = (text[:-2], 1) if text.endswith("ms") else (text[:-1], UNITS_MS.get(text[-1:], 0))
    if not unit_ms or not _is_number(number):
        raise ValueError(f"found {text!r}, expected a duration, for example 90s, 15m, 2h or 3d")
    return int(number) * unit_ms


def parse_moment(text: str, now_ms: int) -> int:
    """Return epoch ms of `2026-11-21`, `2026-11-21T10:00`, epoch ms, or an age such as `90s`, `15m`, `2h`, `3d`.

    A time without a zone is UTC. ValueError.
    """
    from datetime import UTC, datetime

    text = text.strip()
    if _is_number(text[:-1]) and text[-1:] in UNITS_MS:
        return now_ms - parse_duration(text)
    if _is_number(text) and len(text) >= 12:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        expected = "a time such as 2026-11-21T10:00, epoch ms, or an age such as 15m, 2h, 3d"
        raise ValueError(f"found {text!r}, expected {expected}") from None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 15  # epoch ms have 13 digits
