"""SyncTeeProducer: TeeProducer for code without asyncio."""

from __future__ import annotations

from collections.abc import Callable

from mqtrail.client import ProducerConfig
from mqtrail.client.sync import Facade, waiting

from .tee import FailedCopy, TeeConfig, TeeCounts, TeeProducer


class SyncTeeProducer(Facade[TeeProducer]):
    """TeeProducer for code without asyncio. Thread safe. For what each method does and raises, see TeeProducer.

    The order of a key is defined for sends of one thread, one after the other. on_failed is called in the client's
    background thread: it must not call the producer.
    """

    def __init__(
        self,
        config: TeeConfig,
        namesrv: str,
        producer: ProducerConfig | None = None,
        *,
        on_failed: Callable[[FailedCopy], None] | None = None,
    ) -> None:
        super().__init__(lambda: TeeProducer(config, namesrv, producer, on_failed=on_failed))

    send = waiting(TeeProducer.send)
    drain = waiting(TeeProducer.drain)
    resend = waiting(TeeProducer.resend)

    @property
    def counts(self) -> TeeCounts:
        """What came of records and copies so far; see TeeProducer.counts."""
        return self._get().counts
