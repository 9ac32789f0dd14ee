"""Which of a broker's messages still wait: for a group, for their time, for the next attempt."""

from collections.abc import Iterable

from mqtrail.wire import DELAY_PROGRESS_PREFIX, MQError, RequestCode, RequestCodeNotSupported, TimerMetrics

from ..core import ClientError
from .access import AdminAccess
from .lag import LagReading


class WaitingMessages:
    """Reads it once. admin: of the cluster."""

    def __init__(self, admin: AdminAccess, broker_name: str) -> None:
        self._admin = admin
        self._broker_name = broker_name

    async def read(self) -> list[str]:
        """Return each kind of message that waits, in words, and what is unknown. ClientError: no such master."""
        address = (await self._admin.targets(broker=self._broker_name))[self._broker_name]
        runtime = await self._admin.runtime_info(address)
        return [*await self._for_groups(), *_delayed(runtime), *await self._timers(address)]

    async def _for_groups(self) -> list[str]:
        lag = await LagReading(self._admin).read()
        found = [f"unknown: {problem}" for problem in lag.problems]
        for group in lag.groups:
            queues = [one for one in group.queues if one.broker_name == self._broker_name]
            if count := sum(one.lag_count or 0 for one in queues):
                found.append(f"{count} messages for group {group.group_name}")
            unknown = next((one for one in queues if one.lag_count is None), None)
            if unknown is not None:
                found.append(f"unknown messages for group {group.group_name}: {unknown.why}")
        return found

    async def _timers(self, address: str) -> list[str]:
        """Return the timers that are not due; versions before 5 have none."""
        try:
            metrics = await self._admin._ask(address, RequestCode.GET_TIMER_METRICS, {}, TimerMetrics.decode)
        except RequestCodeNotSupported:
            return []
        except MQError as error:
            return [f"unknown timers: {error}"]
        return [
            f"{one.count} timers of {topic}" for topic, one in sorted(metrics.timing_count.items()) if one.count > 0
        ]


def _delayed(runtime: dict[str, str]) -> Iterable[str]:
    """Return the delay levels with messages that are not delivered. ClientError: the table has another form."""
    for key, text in sorted(runtime.items()):
        if not key.startswith(DELAY_PROGRESS_PREFIX):
            continue
        delivered, _, end = text.partition(",")
        try:
            count = int(end) - int(delivered)
        except ValueError:
            raise ClientError(f"found {key}={text[:40]} at the broker, expected two numbers") from None
        if count > 0:
            yield f"{count} messages of delay level {key.removeprefix(DELAY_PROGRESS_PREFIX)}"
