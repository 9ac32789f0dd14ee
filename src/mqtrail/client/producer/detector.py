"""The detector: probes avoided brokers, so that no send is spent on finding out whether they are available again.

Source: LatencyFaultToleranceImpl.detectByOneRound and DefaultMQProducerImpl.pickTopic, RocketMQ 5.x client.
"""

from collections.abc import Callable

from mqtrail.clock import now_ms
from mqtrail.wire import MQError, RequestCode

from ..core import BrokerUnknown, ClientInstance, FaultTable, ProducerConfig


class Detector:
    """Marks brokers in a fault table as reachable again; it never marks one as unreachable."""

    def __init__(
        self, client: ClientInstance, faults: FaultTable, config: ProducerConfig, topic: Callable[[], str | None]
    ) -> None:
        self._client = client
        self._faults = faults
        self._config = config
        self._topic = topic

    async def run(self) -> None:
        """Probe periodically until cancelled."""
        await self._client.every(self._config.detect_ms, self.round)

    async def round(self) -> None:
        """Probe each due broker with a request for a queue's end; a refusal does not count as an answer."""
        topic = self._topic()
        for name in self._faults.to_ask(now_ms(), self._config.detect_interval_ms):
            try:
                address = self._client.master(name)
            except BrokerUnknown:
                self._faults.forget(name)
                continue
            if topic is not None and await self._answers(address, topic, name):
                self._faults.answered(name)

    async def _answers(self, address: str, topic: str, broker_name: str) -> bool:
        ext = {"topic": topic, "queueId": "0", "bname": broker_name}
        try:
            await self._client.call(address, RequestCode.GET_MAX_OFFSET, ext, timeout_ms=self._config.detect_timeout_ms)
        except (MQError, OSError):
            return False
        return True
