"""From Kafka to RocketMQ: a bridge with an offset map, translated offsets of groups, a comparison, and a gate.

`Bridge` sends the records of a topic; the files of its folder say how far it is (state.py, offsetmap.py). It needs the
extra `kafka`.
"""

from .bridge import Bridge, BridgeConfig
from .comparing import CompareSides, Comparison, Difference, compare
from .gate import GateCheck, GateConfig, GateResult, gate
from .groups import GroupMove, GroupPlace, move_group
from .kafka import KafkaConfig, KafkaTopic, kafka_settings
from .messages import HeaderRule, OrderBy
from .model import KafkaAway, KafkaRecord, MigrateError
from .offsetmap import OffsetMap, read_map, translated
from .state import BridgeState, is_running, read_bridge

__all__ = [
    "Bridge",
    "BridgeConfig",
    "BridgeState",
    "CompareSides",
    "Comparison",
    "Difference",
    "GateCheck",
    "GateConfig",
    "GateResult",
    "GroupMove",
    "GroupPlace",
    "HeaderRule",
    "KafkaAway",
    "KafkaConfig",
    "KafkaRecord",
    "KafkaTopic",
    "MigrateError",
    "OffsetMap",
    "OrderBy",
    "compare",
    "gate",
    "is_running",
    "kafka_settings",
    "move_group",
    "read_bridge",
    "read_map",
    "translated",
]
