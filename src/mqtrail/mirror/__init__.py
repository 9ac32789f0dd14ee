"""From one cluster of RocketMQ to another: a mirror of messages, translated offsets of groups, an import of an export.

`Mirror` copies the messages of topics; its folder says how far it is (state.py). Works with any cluster on either side.
"""

from .exported import ExportedBroker, ExportedCluster, ImportAction, ImportStep, read_export
from .importing import ClusterImport
from .model import ClusterAway, MirrorError, origin_of, path_of
from .offsets import MirroredGroup, MirroredOffsets, MirroredPlace, mirrored_offsets
from .run import Mirror, MirrorConfig, name_of
from .state import MirrorState, is_running, read_mirror

__all__ = [
    "ClusterAway",
    "ClusterImport",
    "ExportedBroker",
    "ExportedCluster",
    "ImportAction",
    "ImportStep",
    "Mirror",
    "MirrorConfig",
    "MirrorError",
    "MirrorState",
    "MirroredGroup",
    "MirroredOffsets",
    "MirroredPlace",
    "is_running",
    "mirrored_offsets",
    "name_of",
    "origin_of",
    "path_of",
    "read_export",
    "read_mirror",
]
