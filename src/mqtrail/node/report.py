"""What a broker tells once it is ready, wherever it runs."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from mqtrail.store import MessageStore


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """address: what clients are told. recovery: of its store, in words and in figures; '' and {} without a store.
    metrics: where Prometheus asks; '' for nowhere."""

    address: str
    recovery: str
    figures: dict[str, Any]
    metrics: str = ""

    @classmethod
    def of(cls, address: str, store: MessageStore | None, metrics: str = "") -> Self:
        """Return the report of a broker that has just started."""
        if store is None:
            return cls(address, "", {}, metrics)
        return cls(address, str(store.recovery), asdict(store.recovery), metrics)
