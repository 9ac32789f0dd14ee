"""Asks consumers whether they consume in order: no list of clients has that.

A broker forwards the question to the client. Each consumer is asked once, then again after ASK_AGAIN_MS, because a new
process can have the id of an old one. A consumer that does not answer is asked again after RETRY_MS; no further
consumer is asked in the same sample then, so that a sample takes at most TIMEOUT_MS longer.
"""

from __future__ import annotations

from typing import Final

from mqtrail.client import SyncAdmin
from mqtrail.wire import PROP_CONSUME_ORDERLY, ConsumerConnections, ConsumeType, MessageModel, MQError, Refusal

ASK_AGAIN_MS: Final = 600_000
RETRY_MS: Final = 60_000
TIMEOUT_MS: Final = 1_000
CLIENTS_MAX: Final = 100_000  # consumers whose answers are kept; beyond it, all are forgotten and asked again


class ConsumeOrders:
    """Whether consumers consume in order, as they said last: 'true', 'false', or '' if unknown."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], tuple[str, int]] = {}  # group and client -> answer, and when to ask again
        self._silent_ms: int | None = None  # the sample in which a consumer did not answer

    def of_clients(
        self, admin: SyncAdmin, group: str, found: ConsumerConnections, address: str, sampled_ms: int
    ) -> dict[str, str]:
        """The answers of the clients that a broker at this address listed; only those of push consumers."""
        if found.consume_type != ConsumeType.CONSUME_PASSIVELY or found.message_model != MessageModel.CLUSTERING:
            return {}
        return {
            one.client_id: self._of(admin, group, one.client_id, address, sampled_ms) for one in found.connection_set
        }

    def _of(self, admin: SyncAdmin, group: str, client_id: str, address: str, sampled_ms: int) -> str:
        """What a consumer of a broker at this address says; it is asked if that is not known."""
        known, until_ms = self._answers.get((group, client_id), ("", 0))
        if sampled_ms < until_ms or self._silent_ms == sampled_ms:
            return known
        if len(self._answers) >= CLIENTS_MAX:
            self._answers.clear()
        try:
            info = admin.running_info(group, client_id, address, timeout_ms=TIMEOUT_MS)
            known, until_ms = info.properties.get(PROP_CONSUME_ORDERLY, ""), sampled_ms + ASK_AGAIN_MS
        except MQError as error:
            until_ms = sampled_ms + RETRY_MS
            if not isinstance(error, Refusal):
                self._silent_ms = sampled_ms
        self._answers[group, client_id] = known, until_ms
        return known
