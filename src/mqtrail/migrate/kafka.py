"""Reads a topic of Kafka: its partitions, their ends, their records, and the offsets of groups.

Only committed records are read: those of an aborted transaction are not there. One reader is one connection: after
KafkaAway, close it and open another one.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.conn import create_conn
from aiokafka.helpers import create_ssl_context

from .model import KafkaAway, KafkaRecord, MigrateError

ANSWER_MS: Final = 10_000  # how long Kafka may take for an answer
FETCH_SIZE: Final = 16 * 1024 * 1024  # bytes of a fetch, of all partitions of a broker; a larger record is still read
FETCH_PARTITION_SIZE: Final = 1024 * 1024  # bytes of a fetch, of one partition; likewise
TURN_COUNT: Final = 64  # records of a partition, before some of the next one
FIND_COORDINATOR_TRIES: Final = 20
FIND_COORDINATOR_S: Final = 0.25  # between two of them
SETTINGS: Final = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
)
"""What a settings file of Kafka may have; the names are those of librdkafka."""
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_UNKNOWN_TOPIC, _TOPIC_FORBIDDEN = 3, 29  # error codes of Kafka's protocol


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """Where Kafka is, host:port with commas, and how to log in: settings by their names in SETTINGS."""

    bootstrap: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def options(self) -> dict[str, Any]:
        """Return the options of the clients. OSError: a file of the settings cannot be read."""
        of = self.settings.get
        options: dict[str, Any] = {"bootstrap_servers": self.bootstrap, "request_timeout_ms": ANSWER_MS}
        protocol = of("security.protocol", "PLAINTEXT").upper()
        options |= {"security_protocol": protocol, "sasl_mechanism": of("sasl.mechanism", "PLAIN")}
        options |= {"sasl_plain_username": of("sasl.username"), "sasl_plain_password": of("sasl.password")}
        if protocol in ("SSL", "SASL_SSL"):
            options["ssl_context"] = create_ssl_context(
                cafile=of("ssl.ca.location"),
                certfile=of("ssl.certificate.location"),
                keyfile=of("ssl.key.location"),
                password=of("ssl.key.password"),
            )
        return options


def kafka_settings(text: str) -> dict[str, str]:
    """Return the settings of a file: lines of name=value; # begins a comment. MigrateError."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or name.strip() not in SETTINGS:
            raise MigrateError(
                f"found {name.strip()!r} in line {number} of the Kafka settings, expected name=value with one of "
                f"{', '.join(SETTINGS)}: remove or correct the line"
            )
        found[name.strip()] = value.strip()
    _check_log_in(found)
    return found


def _check_log_in(found: Mapping[str, str]) -> None:
    protocol = found.get("security.protocol", "PLAINTEXT")
    if protocol.upper() not in PROTOCOLS:
        raise _wrong_setting("security.protocol", repr(protocol), f"one of {', '.join(PROTOCOLS)}")
    mechanism = found.get("sasl.mechanism", "PLAIN")
    if mechanism not in MECHANISMS:
        raise _wrong_setting("sasl.mechanism", repr(mechanism), f"one of {', '.join(MECHANISMS)}")
    if protocol.upper().startswith("SASL"):
        for name in ("sasl.username", "sasl.password"):
            if not found.get(name):
                raise _wrong_setting(name, "none", f"one, for security.protocol={protocol}")


def _wrong_setting(name: str, what: str, expected: str) -> MigrateError:
    return MigrateError(f"found {what} as {name} in the Kafka settings, expected {expected}: correct the file")


@contextmanager
def answers(what: str, forbidden: Callable[[str], MigrateError] | None = None) -> Iterator[None]:
    """Convert errors of the library. forbidden: makes the error of a missing right. KafkaAway, MigrateError."""
    try:
        yield
    except (kafka_errors.UnknownTopicOrPartitionError, kafka_errors.InvalidTopicError) as error:
        raise MigrateError(f"found no {what} in Kafka, expected it: check its name") from error
    except (
        kafka_errors.TopicAuthorizationFailedError,
        kafka_errors.GroupAuthorizationFailedError,
        kafka_errors.ClusterAuthorizationFailedError,
    ) as error:
        raise (forbidden or _forbidden)(what) from error
    except (kafka_errors.AuthenticationFailedError, kafka_errors.SaslAuthenticationFailed) as error:
        raise MigrateError(
            f"Kafka refused the log-in: {error}: expected a user and password that it knows: correct --kafka-settings"
        ) from error
    except (ValueError, AssertionError) as error:
        raise MigrateError(
            f"could not use Kafka's answer for the {what}: {error or type(error).__name__}: expected settings and "
            "records that aiokafka knows, and header names in UTF-8: correct them"
        ) from error
    except (kafka_errors.KafkaError, OSError, TimeoutError) as error:
        raise KafkaAway(f"Kafka did not answer a request for the {what}: {error or type(error).__name__}") from error


def _forbidden(what: str) -> MigrateError:
    return MigrateError(
        f"found no right to read the {what} in Kafka, expected the operations Read, Describe and DescribeConfigs on "
        "the topic, and Describe on groups: grant them to this user with kafka-acls.sh, then start it again"
    )


@asynccontextmanager
async def connecting(config: KafkaConfig, what: str) -> AsyncIterator[None]:
    """Convert errors of a first connection, whose reason the library does not tell. KafkaAway, MigrateError."""
    try:
        with answers(what):
            yield
    except KafkaAway as error:
        if isinstance(error.__cause__, kafka_errors.KafkaConnectionError):
            await _check_connection(config, what)
        raise


async def _check_connection(config: KafkaConfig, what: str) -> None:
    """Connect, to find out whether a retry is of use. MigrateError: it is of none."""
    options = config.options()
    for address in options.pop("bootstrap_servers").split(","):
        host, _, port = address.rpartition(":")
        try:
            (await create_conn(host.strip("[]"), int(port), **options)).close()
            return
        except ssl.SSLError as error:
            raise MigrateError(
                f"found no TLS connection to Kafka at {address}: {error}: expected TLS there, and a certificate for "
                "this name by the authority in ssl.ca.location: correct --kafka-settings"
            ) from error
        except (kafka_errors.AuthenticationFailedError, kafka_errors.SaslAuthenticationFailed) as error:
            with answers(what):
                raise error
        except (kafka_errors.KafkaError, OSError, TimeoutError):
            continue


class KafkaTopic:
    """Reads one topic. Use it with `async with`."""

    def __init__(self, config: KafkaConfig, topic: str) -> None:
        self._config = config
        self._topic = topic
        self._what = f"topic {topic!r}"
        self._stack = AsyncExitStack()
        self._next: dict[int, int] = {}  # for errors: by partition, the record after the last one read
        # The library logs each failure that it also raises.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)

    async def __aenter__(self) -> KafkaTopic:
        options = self._config.options()
        try:
            async with connecting(self._config, self._what):
                self._admin = AIOKafkaAdminClient(**options)
                self._stack.push_async_callback(self._admin.close)
                await self._admin.start()
                self._consumer = AIOKafkaConsumer(
                    **options,
                    group_id=None,
                    enable_auto_commit=False,
                    auto_offset_reset="none",
                    isolation_level="read_committed",
                    fetch_max_bytes=FETCH_SIZE,
                    max_partition_fetch_bytes=FETCH_PARTITION_SIZE,
                )
                self._stack.push_async_callback(self._consumer.stop)
                await self._consumer.start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def cluster_id(self) -> str:
        """Return the id of the cluster. KafkaAway."""
        with answers("cluster's id"):
            return str((await self._admin.describe_cluster())["cluster_id"])

    async def partitions(self) -> list[int]:
        """Return the topic's partitions. MigrateError: there is no such topic, or no right. KafkaAway."""
        with answers(self._what):
            (found,) = await self._admin.describe_topics([self._topic])
        if found["error_code"] == _UNKNOWN_TOPIC or (not found["error_code"] and not found["partitions"]):
            raise MigrateError(f"found no {self._what} in Kafka, expected it: check its name")
        if found["error_code"] == _TOPIC_FORBIDDEN:
            raise _forbidden(self._what)
        if found["error_code"]:
            raise KafkaAway(f"Kafka answered error {found['error_code']} for the {self._what}")
        return sorted(one["partition"] for one in found["partitions"])

    async def cleanup_policy(self) -> str:
        """Return the topic's cleanup.policy. MigrateError: no right. KafkaAway."""
        with answers(self._what):
            (found,) = await self._admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, self._topic)])
        (resource,) = found.resources
        if resource[0] == _TOPIC_FORBIDDEN:
            raise _forbidden(self._what)
        if resource[0]:
            raise KafkaAway(f"Kafka answered error {resource[0]} for the settings of the {self._what}")
        return str(next((entry[1] for entry in resource[4] if entry[0] == "cleanup.policy"), "delete"))

    async def firsts(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the first offset that each partition keeps. KafkaAway."""
        with answers(self._what):
            return _plain(await self._consumer.beginning_offsets(self._places(partitions)))

    async def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offset after the last committed record of each partition. KafkaAway."""
        with answers(self._what):
            return _plain(await self._consumer.end_offsets(self._places(partitions)))

    async def at_time(self, partitions: Iterable[int], time_ms: int) -> dict[int, int]:
        """Return the first offset of a record of that time or later, else the end. KafkaAway."""
        places = self._places(partitions)
        with answers(self._what):
            found = await self._consumer.offsets_for_times(dict.fromkeys(places, time_ms))
            ends = await self._consumer.end_offsets(places)
        return {one.partition: ends[one] if found[one] is None else found[one].offset for one in places}

    async def committed(self, group: str, *, may_be_none: bool = False) -> dict[int, int]:
        """Return the committed offsets of a group on the topic. MigrateError: there are no offsets. KafkaAway."""
        what = f"offsets of group {group!r} on topic {self._topic!r}"
        with answers(what):
            found = await self._of_coordinator(lambda: self._admin.list_consumer_group_offsets(group))
        offsets = {
            place.partition: one.offset
            for place, one in found.items()
            if place.topic == self._topic and one.offset >= 0
        }
        if not offsets and not may_be_none:
            raise MigrateError(
                f"found no {what} in Kafka, expected some: check the names of group and topic, and the right Describe "
                "on the group"
            )
        return offsets

    async def member_count(self, group: str) -> int:
        """Return how many members of a group run. MigrateError: no right. KafkaAway."""
        what = f"members of group {group!r}"
        with answers(what):
            (answer,) = await self._of_coordinator(lambda: self._admin.describe_consumer_groups([group]))
            code, _, _, _, _, members, *_ = answer.groups[0]
            if code:
                raise kafka_errors.for_code(code)
        return len(members)

    async def commit(self, group: str, offsets: Mapping[int, int]) -> None:
        """Commit offsets of a group, by partition. MigrateError: it has members, or no right. KafkaAway."""
        what = f"offsets of group {group!r} on topic {self._topic!r}"
        consumer = AIOKafkaConsumer(**self._config.options(), group_id=group, enable_auto_commit=False)
        try:
            with answers(what):
                try:
                    await consumer.start()
                    consumer.assign(self._places(offsets))
                    await consumer.commit({TopicPartition(self._topic, one): at for one, at in offsets.items()})
                except (kafka_errors.CommitFailedError, kafka_errors.UnknownMemberIdError) as error:
                    raise MigrateError(
                        f"found running members of group {group!r} in Kafka, expected none: stop them, apply again, "
                        "then start them"
                    ) from error
        finally:
            await consumer.stop()

    async def _of_coordinator(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask the coordinator of a group, which a young cluster does not have at once."""
        for tries_left in reversed(range(FIND_COORDINATOR_TRIES)):
            try:
                return await ask()
            except (kafka_errors.GroupCoordinatorNotAvailableError, kafka_errors.NotCoordinatorForGroupError):
                if not tries_left:
                    raise
                await asyncio.sleep(FIND_COORDINATOR_S)
        raise AssertionError("it returns, or raises")

    def begin(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets on."""
        self._next = dict(offsets)
        self._consumer.assign(self._places(offsets))
        for partition, offset in offsets.items():
            self._consumer.seek(TopicPartition(self._topic, partition), offset)

    async def read(self, count_max: int, wait_ms: int) -> list[KafkaRecord]:
        """Return what is there, each partition in order; nothing after wait_ms. KafkaAway, MigrateError.

        Partitions take turns of TURN_COUNT records, so that all of them are on their way at once.
        """
        with answers(f"{self._what} (next offsets by partition: {self._next})"):
            found = await self._consumer.getmany(timeout_ms=wait_ms, max_records=count_max)
        self._next |= {place.partition: records[-1].offset + 1 for place, records in found.items()}
        longest = max(map(len, found.values()), default=0)
        return [
            KafkaRecord(
                self._topic,
                place.partition,
                one.offset,
                one.timestamp,
                one.key,
                one.value,
                tuple(one.headers),
            )
            for start in range(0, longest, TURN_COUNT)
            for place, records in found.items()
            for one in records[start : start + TURN_COUNT]
        ]

    async def position(self, partition: int) -> int:
        """Return the offset that `read` continues at, which passes marks of transactions. KafkaAway."""
        with answers(self._what):
            return int(await self._consumer.position(TopicPartition(self._topic, partition)))

    def _places(self, partitions: Iterable[int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, one) for one in sorted(partitions)]


def _plain(found: Mapping[TopicPartition, int]) -> dict[int, int]:
    return {place.partition: offset for place, offset in found.items()}
