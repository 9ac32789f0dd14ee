"""From Kafka to RocketMQ: a bridge with an offset map, translated offsets of groups, a comparison, a gate, and a tee.

`Bridge` sends the records of a topic; `TeeProducer` writes new ones to both sides. The files of a migration's folder
say how far it is (state.py, offsetmap.py, copies.py). It needs the extra `kafka`.
"""

from .back import GroupReturn, PartitionPlace, return_group
from .bridge import Bridge, BridgeConfig
from .comparing import CompareSides, Comparison, Difference, compare
from .copies import FailedFile, TeeSide
from .gate import GateCheck, GateConfig, GateResult, gate
from .groups import GroupMove, GroupPlace, move_group
from .journal import waiting_files
from .kafka import KafkaConfig, KafkaTopic, kafka_settings
from .left import resend_files
from .messages import HeaderRule, OrderBy
from .model import KafkaAway, KafkaRecord, MigrateError
from .offsetmap import OffsetMap, read_map, translated
from .results import ResultLog, ResultRange, compare_results
from .state import BridgeState, is_running, read_bridge
from .tee import FailedCopy, TeeConfig, TeeCounts, TeeProducer, TeeResult
from .tee_sync import SyncTeeProducer

__all__ = [
    "Bridge",
    "BridgeConfig",
    "BridgeState",
    "CompareSides",
    "Comparison",
    "Difference",
    "FailedCopy",
    "FailedFile",
    "GateCheck",
    "GateConfig",
    "GateResult",
    "GroupMove",
    "GroupPlace",
    "GroupReturn",
    "HeaderRule",
    "KafkaAway",
    "KafkaConfig",
    "KafkaRecord",
    "KafkaTopic",
    "MigrateError",
    "OffsetMap",
    "OrderBy",
    "PartitionPlace",
    "ResultLog",
    "ResultRange",
    "SyncTeeProducer",
    "TeeConfig",
    "TeeCounts",
    "TeeProducer",
    "TeeResult",
    "TeeSide",
    "compare",
    "compare_results",
    "gate",
    "is_running",
    "kafka_settings",
    "move_group",
    "read_bridge",
    "read_map",
    "resend_files",
    "return_group",
    "translated",
    "waiting_files",
]
