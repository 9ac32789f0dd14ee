"""The options of the `rocketmq` sink: text in, one checked value out. The page of settings lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mqtrail.client import Credentials, TlsClientConfig
from mqtrail.wire import InvalidParameter, validate_group

from .options import OPTIONS, SourceOptionError, credentials_of, positive, tls_of

BODY_SIZE_MAX: Final = 4 * 1024 * 1024  # the default of brokers
BATCH_SIZE_MAX: Final = 128 * 1024

SINK_OPTIONS: Mapping[str, str] = {
    "nameServer": "addresses of the name servers, host:port, separated by `;` (required)",
    "topic": "topic of all rows; without it, each row has its own in the column `topic`",
    "idColumn": "column whose value identifies a row, once in a write; it is not sent (the row's whole content)",
    "writeId": "batch only: name of this write, at most once for each piece of data. A repeated write of the same name "
    "sends only rows that the earlier ones did not store (each write is a new one)",
    "rejectPath": "folder for rows that cannot be sent, as Parquet files; the same on driver and executors (such a row "
    "fails its task)",
    "producerGroup": "producer group (`SPARK_SINK`)",
    "inFlightMax": "maximum number of requests of a task that are not acknowledged yet (16)",
    "batchRowsMax": "maximum number of rows per request; 1: each row is sent alone (64)",
    "batchSizeMax": "maximum bytes of bodies and properties of a request with several rows (131072)",
    "bodySizeMax": "maximum bytes of a body (4194304)",
    "sendTimeoutMs": "ms to wait for the acknowledgement of one attempt (3000)",
    "retryTimeoutMs": "ms to retry one request before the task fails (60000)",
    "replaySettleMs": "ms after a failure before the sink looks up what the broker stored (2000)",
    "clockSkewMaxMs": "maximum ms by which the clocks of brokers differ (60000)",
    **{name: about for name, about in OPTIONS.items() if name.startswith(("access", "secret", "security", "tls"))},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options, checked."""

    name_server: str
    topic: str | None = None
    id_column: str | None = None
    write_id: str | None = None
    reject_path: Path | None = None
    producer_group: str = "SPARK_SINK"
    in_flight_max: int = 16
    batch_rows_max: int = 64
    batch_size_max: int = BATCH_SIZE_MAX
    body_size_max: int = BODY_SIZE_MAX
    send_timeout_ms: int = 3_000
    retry_timeout_ms: int = 60_000
    replay_settle_ms: int = 2_000
    clock_skew_max_ms: int = 60_000
    credentials: Credentials | None = None
    tls: TlsClientConfig = field(default_factory=TlsClientConfig)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Check the options that Spark passes (names in any case). SourceOptionError names the wrong option."""
    given = {name.lower(): value for name, value in options.items()}

    def text(name: str) -> str | None:
        return given.get(name.lower(), "").strip() or None

    def number(name: str, default: int) -> int:
        return positive(given, name, SINK_OPTIONS) or default

    name_server = text("nameServer")
    if name_server is None:
        raise SourceOptionError(f"option nameServer is missing: {SINK_OPTIONS['nameServer']}")
    group = text("producerGroup") or "SPARK_SINK"
    try:
        validate_group(group)
    except InvalidParameter as error:
        raise SourceOptionError(f"option producerGroup: {error}") from None
    body_size_max = number("bodySizeMax", BODY_SIZE_MAX)
    return SinkOptions(
        name_server=name_server,
        topic=text("topic"),
        id_column=text("idColumn"),
        write_id=text("writeId"),
        reject_path=_folder(text("rejectPath")),
        producer_group=group,
        in_flight_max=number("inFlightMax", 16),
        batch_rows_max=number("batchRowsMax", 64),
        batch_size_max=min(number("batchSizeMax", BATCH_SIZE_MAX), body_size_max),
        body_size_max=body_size_max,
        send_timeout_ms=number("sendTimeoutMs", 3_000),
        retry_timeout_ms=number("retryTimeoutMs", 60_000),
        replay_settle_ms=number("replaySettleMs", 2_000),
        clock_skew_max_ms=number("clockSkewMaxMs", 60_000),
        credentials=credentials_of(given),
        tls=tls_of(given),
    )


def _folder(text: str | None) -> Path | None:
    if text is None:
        return None
    path = text.removeprefix("file://")
    if "://" in path or not path.startswith("/"):
        raise SourceOptionError(
            f"option rejectPath is {text[:200]!r}, expected the absolute path of a folder that driver and "
            "executors share"
        )
    return Path(path)
