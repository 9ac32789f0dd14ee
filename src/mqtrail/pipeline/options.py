"""The options of the `rocketmq` data source: text in, one checked value out.

Options that Spark's Kafka source has too have the same names. docs/design/pipeline.md lists them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mqtrail.client import Credentials, InstanceConfig, TlsClientConfig
from mqtrail.wire import BODY_SIZE_MAX, MQError

from .offsets import QueueOffsets, offsets_from_json
from .times import QueueTimes, Strategy, times_from_json

EARLIEST = -2  # in a JSON of offsets: the first message the broker still has
DIGITS_MAX = 18  # of a number: Spark's are longs
LATEST = -1  # in a JSON of offsets: after the last one it has now
TRIGGER_DELAY_MAX_MS = 15 * 60_000
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

OPTIONS: Mapping[str, str] = {
    "nameServer": "addresses of the name servers, host:port, separated by `;` (required)",
    "topic": "topic to read; several are separated by `,` (required, unless `subscribePattern` is set)",
    "subscribePattern": "regular expression: read the topics whose whole names match, but no system, retry or "
    "dead-letter topics. A stream also reads topics that are created later, from their start",
    "startingOffsets": "`earliest` (default), `latest` or JSON `{topic: {broker: {queueId: offset}}}`; "
    "-2 in it is earliest, -1 latest. A stream uses it at its first start only",
    "endingOffsets": "batch only: `latest` (default) or JSON as above, exclusive",
    "startingTimestamp": "instead of startingOffsets: start at the first message stored at or after this time (epoch "
    "ms, broker's clock)",
    "startingOffsetsByTimestamp": "the same as JSON: `{topic: ms}` or `{topic: {broker: {queueId: ms}}}`",
    "startingOffsetsByTimestampStrategy": "`error` (default) or `latest`: fail, or start at the end of the queue, if a "
    "queue has no message at or after its starting time",
    "endingTimestamp": "batch only, instead of endingOffsets: end before the first message stored at or after this "
    "time; a queue without one is read to its end",
    "endingOffsetsByTimestamp": "the same as JSON",
    "maxOffsetsPerTrigger": "stream only: maximum number of messages per micro-batch, shared by backlog",
    "minOffsetsPerTrigger": "stream only: minimum number of messages per micro-batch; fewer wait for maxTriggerDelay. "
    "AvailableNow reads them at once",
    "maxTriggerDelay": "maximum time that fewer messages wait: a number and ms, s, m, h or d (`15m`)",
    "minPartitions": "minimum number of Spark partitions; queues are split to reach it",
    "maxPartitions": "maximum number of Spark partitions; each then reads several queues (one per queue)",
    "failOnDataLoss": "`true` (default): fail when the broker no longer has a message to read; "
    "`false`: continue, with one row for the lost range if the column `lost_until` is selected",
    "onUnreachable": "`fail` (default) or `hold`: fail, or wait for, a broker that does not answer in time (streams)",
    "retryTimeoutMs": "ms to retry one request before the read fails (30000)",
    "readRateMax": "maximum number of messages per second, shared evenly by the partitions of a read (no limit)",
    "bodySizeMax": "maximum bytes of a decompressed body; a larger one is null, with its `body_problem` (33554432)",
    "accessKey": "access key to sign requests with, if the cluster requires signatures (unsigned)",
    "secretKey": "its secret key",
    "securityToken": "security token of temporary keys",
    "tls": "`true`: use TLS (`false`)",
    "tlsVerify": "`true` (default): accept only servers with a trusted certificate; `false`: any server",
    "tlsTrustPath": "PEM file of the authorities, at the same path on every executor (the system's)",
    "tlsCertPath": "PEM file of the client certificate, if servers require one",
    "tlsKeyPath": "PEM file of its key",
    "tlsKeyPassword": "password of that key",
}


class SourceOptionError(MQError):
    """An option of the source or the sink, or a column, is missing or cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options, checked. Offsets are a map if they were given as JSON, otherwise EARLIEST or LATEST."""

    name_server: str
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    starting_offsets: QueueOffsets | int = EARLIEST
    ending_offsets: QueueOffsets | int = LATEST
    starting_times: QueueTimes | None = None
    ending_times: QueueTimes | None = None
    starting_strategy: Strategy = "error"
    offsets_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_max_ms: int = TRIGGER_DELAY_MAX_MS
    partitions_min: int = 0
    partitions_max: int | None = None
    fail_on_data_loss: bool = True
    hold_unreachable: bool = False
    retry_timeout_ms: int = 30_000
    read_rate_max: int | None = None
    body_size_max: int = BODY_SIZE_MAX
    credentials: Credentials | None = None
    tls: TlsClientConfig = field(default_factory=TlsClientConfig)


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Check the options that Spark passes (names in any case). SourceOptionError names the wrong option."""
    given = {name.lower(): value for name, value in options.items()}
    name_server = given.get("nameserver", "").strip()
    if not name_server:
        raise SourceOptionError(f"option nameServer is missing: {OPTIONS['nameServer']}")
    topics, pattern = _topics(given)
    starting = _only_one(given, "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
    ending = _only_one(given, "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
    return SourceOptions(
        name_server=name_server,
        topics=topics,
        topic_pattern=pattern,
        starting_offsets=_offsets(given, "startingOffsets", EARLIEST),
        ending_offsets=_offsets(given, "endingOffsets", LATEST),
        starting_times=_times(given, starting),
        ending_times=_times(given, ending),
        starting_strategy=_strategy(given),
        offsets_per_trigger_max=positive(given, "maxOffsetsPerTrigger"),
        offsets_per_trigger_min=positive(given, "minOffsetsPerTrigger"),
        trigger_delay_max_ms=_duration_ms(given, "maxTriggerDelay", TRIGGER_DELAY_MAX_MS),
        partitions_min=positive(given, "minPartitions") or 0,
        partitions_max=positive(given, "maxPartitions"),
        fail_on_data_loss=choice(given, "failOnDataLoss", {"true": True, "false": False}, default="true"),
        hold_unreachable=choice(given, "onUnreachable", {"fail": False, "hold": True}, default="fail"),
        retry_timeout_ms=positive(given, "retryTimeoutMs") or 30_000,
        read_rate_max=positive(given, "readRateMax"),
        body_size_max=positive(given, "bodySizeMax") or BODY_SIZE_MAX,
        credentials=credentials_of(given),
        tls=tls_of(given),
    )


def security_options(config: InstanceConfig) -> dict[str, str]:
    """Return the options with which the source signs and encrypts as a client of that config does."""
    found: dict[str, str] = {}
    if (credentials := config.credentials) is not None:
        found |= {"accessKey": credentials.access_key, "secretKey": credentials.secret_key}
        if credentials.security_token:
            found["securityToken"] = credentials.security_token
    tls = config.tls
    if tls.enable:
        paths = {"tlsTrustPath": tls.trust_path, "tlsCertPath": tls.cert_path, "tlsKeyPath": tls.key_path}
        found |= {"tls": "true", "tlsVerify": str(tls.verify).lower()}
        found |= {name: str(path.absolute()) for name, path in paths.items() if path is not None}
        if tls.key_password:
            found["tlsKeyPassword"] = tls.key_password
    return found


def _topics(given: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    """Return the topics and the pattern: exactly one of them."""
    _only_one(given, "topic", "subscribePattern")
    topics = tuple(dict.fromkeys(name for name in (part.strip() for part in given.get("topic", "").split(",")) if name))
    pattern = given.get("subscribepattern", "").strip() or None
    if not topics and pattern is None:
        raise SourceOptionError(f"option topic is missing: {OPTIONS['topic']}")
    try:
        re.compile(pattern or "")
    except (re.error, OverflowError, RecursionError) as error:
        raise SourceOptionError(
            f"option subscribePattern is {(pattern or '')[:200]!r}, expected a regular expression ({error})"
        ) from None
    return topics, pattern


def _only_one(given: Mapping[str, str], *names: str) -> str | None:
    """Return which of these options is set; SourceOptionError if there are several."""
    found = [name for name in names if given.get(name.lower(), "").strip()]
    if len(found) > 1:
        raise SourceOptionError(f"options {' and '.join(found)} are set, expected one of them: remove the others")
    return found[0] if found else None


def _times(given: Mapping[str, str], name: str | None) -> QueueTimes | None:
    """Return the times of an option that gives times; None for an option that gives offsets."""
    if name is None or name.endswith("Offsets"):
        return None
    text = given[name.lower()].strip()
    try:
        if name.endswith("ByTimestamp"):
            return times_from_json(json.loads(text))
        if not text.isdecimal() or len(text) > DIGITS_MAX:
            raise ValueError("not a time")
        return QueueTimes(int(text))
    except (ValueError, RecursionError) as error:
        raise SourceOptionError(f"option {name} is {text[:200]!r}, expected {OPTIONS[name]} ({error})") from None


def _strategy(given: Mapping[str, str]) -> Strategy:
    is_latest = choice(given, "startingOffsetsByTimestampStrategy", {"error": False, "latest": True}, default="error")
    return "latest" if is_latest else "error"


def _duration_ms(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    found = re.fullmatch(r"\s*([0-9]{1,12})\s*(ms|s|m|h|d)\s*", text, flags=re.IGNORECASE)
    if found is None:
        raise SourceOptionError(f"option {name} is {text[:200]!r}, expected {OPTIONS[name]}")
    return int(found[1]) * _UNITS_MS[found[2].lower()]


def credentials_of(given: Mapping[str, str]) -> Credentials | None:
    """Read the access key. SourceOptionError does not contain secrets."""
    try:
        found = Credentials(
            access_key=given.get("accesskey", ""),
            secret_key=given.get("secretkey", ""),
            security_token=given.get("securitytoken", ""),
        )
    except MQError as error:
        raise SourceOptionError(f"options accessKey and secretKey: {error}") from error
    return found if found.access_key else None


def tls_of(given: Mapping[str, str]) -> TlsClientConfig:
    """Read the options of TLS."""

    def path(name: str) -> Path | None:
        text = given.get(name.lower(), "")
        return Path(text) if text else None

    try:
        return TlsClientConfig(
            enable=choice(given, "tls", {"true": True, "false": False}, default="false"),
            verify=choice(given, "tlsVerify", {"true": True, "false": False}, default="true"),
            trust_path=path("tlsTrustPath"),
            cert_path=path("tlsCertPath"),
            key_path=path("tlsKeyPath"),
            key_password=given.get("tlskeypassword", ""),
        )
    except MQError as error:
        raise SourceOptionError(f"options tlsCertPath and tlsKeyPath: {error}") from error


def _offsets(given: Mapping[str, str], name: str, default: int) -> QueueOffsets | int:
    text = given.get(name.lower(), "").strip()
    named = {"": default, "earliest": EARLIEST, "latest": LATEST}.get(text.lower())
    if named == EARLIEST and name == "endingOffsets":
        raise SourceOptionError("option endingOffsets is earliest, which reads nothing: latest or JSON is expected")
    if named is not None:
        return named
    try:
        value: Any = json.loads(text)
        return offsets_from_json(value)
    except (ValueError, RecursionError) as error:
        raise SourceOptionError(f"option {name} is {text[:200]!r}, expected {OPTIONS[name]} ({error})") from None


def positive(given: Mapping[str, str], name: str, about: Mapping[str, str] = OPTIONS) -> int | None:
    """Return a number above 0; None if the option is not set."""
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or len(text) > DIGITS_MAX or int(text) == 0:
        raise SourceOptionError(f"option {name} is {text[:200]!r}, expected a whole number above 0: {about[name]}")
    return int(text)


def choice(given: Mapping[str, str], name: str, choices: Mapping[str, bool], default: str) -> bool:
    """Return the value of one of a few words."""
    text = given.get(name.lower(), default).strip().lower()
    if text not in choices:
        raise SourceOptionError(f"option {name} is {text!r}, expected one of {', '.join(choices)}: {OPTIONS[name]}")
    return choices[text]
