"""Before a load: a probe to each queue, until each was consumed."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mqtrail.client import Consumer, Producer
from mqtrail.wire import Message, MessageQueue, MQError

from .marks import SIZE_MIN, Bodies, MarkKind
from .plan import LoadPlan

PROBES_MAX: Final = 1_024  # queues that are probed, the first ones
PROBES_AT_ONCE_MAX: Final = 64
READY_S: Final = 60.0  # for the probes to be consumed
PROBE_WAIT_S: Final = 2.0  # before the missing probes are sent again
SHARE_WAIT_S: Final = 10.0  # for each consumer to get a queue; some ways of sharing leave one without
POLL_S: Final = 0.02


class LoadFailed(MQError):
    """The load could not begin."""


class LoadUnready(LoadFailed):
    """The consumers did not consume each queue in time."""


class Probing:
    """Sends the probes of one run. consumed: numbers of the queues whose probe was consumed, kept by the recorder."""

    def __init__(
        self,
        plan: LoadPlan,
        producers: Sequence[Producer],
        consumers: Sequence[Consumer],
        bodies: Bodies,
        consumed: set[int],
    ) -> None:
        self._plan = plan
        self._producers = producers
        self._consumers = consumers
        self._bodies = bodies
        self._consumed = consumed

    async def run(self, is_stopped: Callable[[], bool]) -> None:
        """Send a probe to each queue until each was consumed. The first has the largest size. LoadFailed."""
        queues = (await self._producers[0].queues(self._plan.topic))[:PROBES_MAX]
        if not queues:
            raise LoadFailed(
                f"found no queue of topic {self._plan.topic!r} that may be written to, expected one: run "
                f"`mqtrail topic perm {self._plan.topic} rw`"
            )
        await self._send_probe(0, queues, self._plan.sizes.largest)  # alone: a refusal ends the run before it begins
        if self._consumers:
            await self._wait_until_consumed(queues, is_stopped)
            await self._send_probes(queues, range(len(queues), len(self._producers)))  # they connect now
        else:
            await self._send_probes(queues, range(1, max(len(queues), len(self._producers))))

    async def _wait_until_consumed(self, queues: list[MessageQueue], is_stopped: Callable[[], bool]) -> None:
        begun_s = time.perf_counter()
        # A probe before the group's first offset in a queue is not delivered: send it once the queue has a member.
        next_s, is_sent = begun_s + PROBE_WAIT_S, False
        while not self._is_ready(queues, may_be_idle=time.perf_counter() >= begun_s + SHARE_WAIT_S):
            if is_stopped():
                return
            if time.perf_counter() >= begun_s + READY_S:
                raise LoadUnready(
                    f"{len(self._consumed)} of {len(queues)} queues of {self._plan.topic!r} were consumed within "
                    f"{READY_S:.0f} s, expected all: look at `mqtrail group members {self._plan.group}` and at the "
                    "read permission of the topic"
                )
            if time.perf_counter() >= next_s or (not is_sent and set(queues) <= {*itertools.chain(*self._shares())}):
                next_s, is_sent = time.perf_counter() + PROBE_WAIT_S, True
                await self._send_probes(queues, (at for at in range(len(queues)) if at not in self._consumed))
            await asyncio.sleep(POLL_S)

    async def _send_probes(self, queues: list[MessageQueue], numbers: Iterable[int]) -> None:
        permits = asyncio.Semaphore(PROBES_AT_ONCE_MAX)

        async def send(number: int) -> None:
            async with permits:
                await self._send_probe(number, queues, SIZE_MIN)

        await asyncio.gather(*map(send, numbers))

    async def _send_probe(self, number: int, queues: list[MessageQueue], size: int) -> None:
        place = number % len(queues)
        body = self._bodies.make(MarkKind.PROBE, size, number, 0, place)
        message = Message(self._plan.topic, body, tags=f"probe-{self._bodies.run_id.hex()}")
        await self._producers[number % len(self._producers)].send(message, queue=queues[place])

    def _shares(self) -> list[list[MessageQueue]]:
        """The queues of each consumer."""
        return [[queue for queue in one.assignment if queue.topic == self._plan.topic] for one in self._consumers]

    def _is_ready(self, queues: list[MessageQueue], *, may_be_idle: bool) -> bool:
        """Whether each queue's probe was consumed, each queue has one member, and each member has a queue."""
        shares = self._shares()
        held = [*itertools.chain(*shares)]
        is_shared = may_be_idle or sum(map(bool, shares)) >= min(len(shares), len(queues))
        return is_shared and len(held) == len(set(held)) and len(self._consumed) == len(queues)
