"""The report of a server that is ready, in this process or in a worker."""

from dataclasses import asdict, dataclass, field
from typing import Any, Self

from mqtrail.store import MessageStore


@dataclass(frozen=True, slots=True)
class ServerReport:
    """address: advertised to clients. recovery, figures: of a broker, the store's recovery as text and as values; empty
    without a store. metrics: URL for Prometheus; empty without one."""

    address: str
    recovery: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    metrics: str = ""

    @classmethod
    def of(cls, address: str, store: MessageStore | None, metrics: str = "") -> Self:
        """Return the report of a broker that has just started."""
        if store is None:
            return cls(address, metrics=metrics)
        return cls(address, str(store.recovery), asdict(store.recovery), metrics)
