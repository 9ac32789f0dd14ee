"""The hour in which a message was created, from its id. Tables are partitioned by it.

    id of 32 characters   IPv4 8 | pid 4 | loader hash 8 | ms since the month began 8 | counter 4      (hex digits)
    id of 56 characters   IPv6 32, the rest alike
    id of 34 characters   version 01 2 | MAC 12 | pid 4 | seconds since 2021-01-01 8 | counter 8       (gRPC clients)

The month is in the producer's time zone. It is read as UTC, so hours are nominal, but equal for all events of an id.
The id does not contain the month. It is taken from the event: the latest month for which the time of the id is at most
16 hours after the event (the largest zone offset, plus clock skew). This is wrong only for events more than four weeks
after the send.
Source: MessageClientIDSetter, apache/rocketmq common/; MessageIdCodec of rocketmq-clients.
"""

from __future__ import annotations

from datetime import UTC, datetime

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
UNKNOWN_HOUR = -1
"""publish_hour of an id that contains no time."""
ZONE_MS = 16 * HOUR_MS
MONTH_MS_MAX = 32 * DAY_MS
GRPC_EPOCH_S = 1_609_459_200  # 2021-01-01T00:00:00Z

_HEX = "0123456789ABCDEF"


def publish_hour_select(source: str, msg_id: str, event_ms: str, columns: str) -> str:
    """SQL: `columns` of `source`, and publish_hour (bigint). msg_id, event_ms: names of columns of source."""
    hex_id = f"translate(upper({msg_id}), '{_HEX}', '') = ''"
    day_before = f"month_ms - {DAY_MS}"
    return f"""
SELECT {columns}, CASE
    WHEN id_s IS NOT NULL THEN ({GRPC_EPOCH_S} + id_s) // 3600
    WHEN id_ms IS NULL OR id_ms >= {MONTH_MS_MAX} OR month_ms IS NULL THEN {UNKNOWN_HOUR}
    WHEN month_ms + id_ms <= late_ms THEN {_floor("month_ms + id_ms", HOUR_MS)}
    ELSE {_floor(f"month_ms - {DAY_MS} * day(make_timestamp(({day_before}) * 1000)) + id_ms", HOUR_MS)}
  END::bigint AS publish_hour
FROM (SELECT *, ({_floor("late_ms", DAY_MS)} - day(make_timestamp(late_ms * 1000)) + 1) * {DAY_MS} AS month_ms
  FROM (SELECT *, {event_ms} + {ZONE_MS} AS late_ms,
      CASE WHEN length({msg_id}) = 32 AND {hex_id} THEN try_cast('0x' || substr({msg_id}, 21, 8) AS bigint)
           WHEN length({msg_id}) = 56 AND {hex_id} THEN try_cast('0x' || substr({msg_id}, 45, 8) AS bigint)
      END AS id_ms,
      CASE WHEN length({msg_id}) = 34 AND substr({msg_id}, 1, 2) = '01' AND {hex_id}
           THEN try_cast('0x' || substr({msg_id}, 19, 8) AS bigint) END AS id_s
    FROM {source}) AS with_ids) AS dated"""


def _floor(ms: str, unit_ms: int) -> str:
    """SQL: the number of whole units from the epoch to a time, rounded down also before it, unlike `//`."""
    return f"cast(floor(({ms}) / {unit_ms}) AS bigint)"


def publish_hours(msg_id: str, first_hour: int, end_hour: int) -> list[int]:
    """Return every publish_hour in [first_hour, end_hour) that rows of `msg_id` can have, or UNKNOWN_HOUR.

    A look-up does not know the month, which `publish_hour_select` takes from the event; so it returns one per month.
    """
    if len(msg_id) == 34 and msg_id.startswith("01") and (seconds := _hex(msg_id[18:26], msg_id)) is not None:
        return [(GRPC_EPOCH_S + seconds) // 3600]
    digits = {32: msg_id[20:28], 56: msg_id[44:52]}.get(len(msg_id), "")
    id_ms = _hex(digits, msg_id)
    if id_ms is None or id_ms >= MONTH_MS_MAX:
        return [UNKNOWN_HOUR]
    hours = []
    month = _month_start_ms(first_hour * HOUR_MS - MONTH_MS_MAX)
    while month < end_hour * HOUR_MS:
        if first_hour <= (hour := (month + id_ms) // HOUR_MS) < end_hour:
            hours.append(hour)
        month = _month_start_ms(month + MONTH_MS_MAX)
    return hours


def born_ms(msg_id: str, before_ms: int) -> int | None:
    """Return the latest time up to before_ms that an id may hold, by its producer's clock; None: it holds none.

    Clients count the milliseconds of the month in their own time zone. Taken for UTC, the time is off by that.
    """
    if len(msg_id) == 34 and msg_id.startswith("01") and (seconds := _hex(msg_id[18:26], msg_id)) is not None:
        return (GRPC_EPOCH_S + seconds) * 1000
    id_ms = _hex({32: msg_id[20:28], 56: msg_id[44:52]}.get(len(msg_id), ""), msg_id)
    if id_ms is None or id_ms >= MONTH_MS_MAX:
        return None
    month = _month_start_ms(before_ms)
    return month + id_ms if month + id_ms <= before_ms else _month_start_ms(month - DAY_MS) + id_ms


def _hex(digits: str, whole: str) -> int | None:
    return int(digits, 16) if digits and set(whole.upper()) <= set(_HEX) else None


def _month_start_ms(at_ms: int) -> int:
    day = datetime.fromtimestamp(at_ms / 1000, UTC)
    return int(datetime(day.year, day.month, 1, tzinfo=UTC).timestamp()) * 1000
