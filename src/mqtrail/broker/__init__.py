"""Decides: what a broker answers and does. Pure: no socket, clock, thread or chance (docs/design/broker.md).

`Broker` is the front; one module a concern stands behind it: send, pull and held, offsets, topics, groups, clients,
delays, send_back, query, admin, stats, trace. effects has what goes in and out, config what may be set.
"""

from mqtrail.wire import Peer, PeerId, Send

from .broker import Broker
from .config import BROKER_CONF, BrokerConfig, properties_text

__all__ = [
    "BROKER_CONF",
    "Broker",
    "BrokerConfig",
    "Peer",
    "PeerId",
    "Send",
    "properties_text",
]
