"""Requests of operators (mqadmin, dashboards): topics, groups, offsets, statistics, settings, store, replicas.

One module per subject; surveys collects the state of live consumers.
"""

from .group_admin import GroupRequests
from .master_tables import CONFIG_CODES, END_CODE, OPTIONAL_CODES, PROGRESS_CODES, MasterTables, master_end
from .offset_admin import OffsetAdmin
from .replicas import ReplicaRequests
from .settings import SettingsRequests
from .stats import StatsRequests
from .store import StoreAdmin
from .surveys import ClientSurveys
from .topic_admin import TopicRequests

__all__ = [
    "CONFIG_CODES",
    "END_CODE",
    "OPTIONAL_CODES",
    "PROGRESS_CODES",
    "ClientSurveys",
    "GroupRequests",
    "MasterTables",
    "OffsetAdmin",
    "ReplicaRequests",
    "SettingsRequests",
    "StatsRequests",
    "StoreAdmin",
    "TopicRequests",
    "master_end",
]
