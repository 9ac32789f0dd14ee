"""What a load is: its rate, its messages, its clients, its bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mqtrail.wire import MQError, validate_group, validate_topic

from .marks import SIZE_MIN
from .sizes import Sizes

RATE_MAX: Final = 1_000_000.0
DURATION_S_MAX: Final = 86_400.0
MESSAGES_MAX: Final = 50_000_000  # two bytes of memory each
CLIENTS_MAX: Final = 256  # producers, consumers
KEYS_MAX: Final = 1_000_000  # eight bytes of memory each
BATCH_MAX: Final = 1_000
IN_FLIGHT_MAX: Final = 65_535


class InvalidPlan(MQError):
    """A load with these values is not possible."""


class Arrivals(StrEnum):
    """The times of the sends. CONSTANT: equal distances. POISSON: independent of each other, with this mean rate."""

    CONSTANT = "constant"
    POISSON = "poisson"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """One load. InvalidPlan: its values contradict each other or exceed a maximum.

    rate: messages per second, of all producers together. warm_up_s: before `duration_s`, sent and counted, but not part
    of latency and rate. keys: number of different keys; 0: none. ordered: by key, with a queue for each key. batch:
    messages of one send. in_flight: maximum number of sends without an answer. drain_s: how long the end waits for what
    is not consumed. seed: of sizes, keys and times.
    """

    topic: str
    group: str
    rate: float
    duration_s: float
    warm_up_s: float = 0.0
    sizes: Sizes = Sizes((1024,))  # noqa: RUF009 - it is frozen
    keys: int = 0
    ordered: bool = False
    producers: int = 1
    consumers: int = 1
    batch: int = 1
    delay_level: int = 0
    in_flight: int = 1_000
    drain_s: float = 30.0
    seed: int = 0
    arrivals: Arrivals = Arrivals.CONSTANT

    def __post_init__(self) -> None:
        validate_topic(self.topic)
        validate_group(self.group)
        self._check_numbers()
        if self.ordered and not self.keys:
            raise InvalidPlan("found an ordered load without keys, expected the number of keys: pass --keys")
        if self.delay_level and self.batch > 1:
            raise InvalidPlan(
                f"found delay level {self.delay_level} and a batch of {self.batch}, expected one of them: brokers do "
                "not delay batches"
            )
        if self.delay_level and self.ordered:
            raise InvalidPlan(
                f"found delay level {self.delay_level} and an ordered load, expected one of them: delayed messages of "
                "one key are not stored in the order of their sends"
            )
        if self.messages > MESSAGES_MAX:
            raise InvalidPlan(
                f"found {self.messages} messages ({self.rate:g} a second for {self.end_s:g} s), expected at most "
                f"{MESSAGES_MAX}: each is counted in memory; shorten the run, or lower the rate"
            )

    def _check_numbers(self) -> None:
        if not (math.isfinite(self.rate) and 0 < self.rate <= RATE_MAX):
            raise InvalidPlan(f"rate: found {self.rate:g}, expected more than 0 and at most {RATE_MAX:.0f} a second")
        if not 0 < self.duration_s <= DURATION_S_MAX or not 0 <= self.warm_up_s <= DURATION_S_MAX:
            raise InvalidPlan(
                f"found a duration of {self.duration_s:g} s after a warm-up of {self.warm_up_s:g} s, expected more "
                f"than 0 s and at most {DURATION_S_MAX:.0f} s (24h) each"
            )
        for name, found, least, most in (
            ("keys", self.keys, 0, KEYS_MAX),
            ("producers", self.producers, 1, CLIENTS_MAX),
            ("consumers", self.consumers, 0, CLIENTS_MAX),
            ("batch", self.batch, 1, BATCH_MAX),
            ("delay level", self.delay_level, 0, 2**31 - 1),
            ("sends in flight", self.in_flight, 1, IN_FLIGHT_MAX),
            ("drain, seconds", self.drain_s, 0, DURATION_S_MAX),
        ):
            if not least <= found <= most:
                raise InvalidPlan(f"{name}: found {found:g}, expected {least} to {most:.0f}")
        if self.sizes.smallest < SIZE_MIN:
            raise InvalidPlan(
                f"size: found {self.sizes.smallest} bytes, expected at least {SIZE_MIN}: the mark by which each "
                "message is counted"
            )

    def check_size(self, body_size_max: int) -> None:
        """Check the bytes of one send. body_size_max: of a producer. InvalidPlan."""
        if self.sizes.largest * self.batch > body_size_max:
            raise InvalidPlan(
                f"size: found {self.sizes.largest} bytes, {self.batch} in a batch, expected at most {body_size_max} "
                "bytes in one send: lower --size or --batch, or raise [producer] body_size_max and the limit of the "
                "brokers"
            )

    @property
    def end_s(self) -> float:
        """The end of the load, from its begin."""
        return self.warm_up_s + self.duration_s

    @property
    def messages(self) -> int:
        """Number of messages; with Poisson arrivals the mean."""
        return math.ceil(self.rate * self.end_s)
