"""Makes the broker that the settings ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from .broker_node import BrokerNode
from .config import NodeConfig

if TYPE_CHECKING:
    from .controlled_broker import ControlledBroker
    from .ledger_broker import LedgerBroker

AnyBroker: TypeAlias = "BrokerNode | ControlledBroker | LedgerBroker"


def make_broker(
    name: str, folder: Path | None, config: NodeConfig, on_failure: Callable[[BaseException], None]
) -> AnyBroker:
    """Return the broker for the settings. InvalidParameter."""
    if config.broker.controller_mode:
        from .controlled_broker import ControlledBroker  # other brokers do without its memory

        return ControlledBroker(name, folder, config, on_failure)
    if config.broker.ledger_mode:
        from .ledger_broker import LedgerBroker  # the same

        return LedgerBroker(name, folder, config, on_failure)
    return BrokerNode(name, folder, config, on_failure)
