"""What people do about incidents: acknowledge, mute, and take that back. Kept in a file of the data folder.

It writes to neither lake nor cluster. Each act is a line of the audit log first.
"""

from .acts import (
    HANDLED_FILE,
    WHY_SIZE_MAX,
    AmbiguousIncident,
    HandledIncidents,
    HandlingFailed,
    InvalidAct,
    UnknownIncident,
    check_act,
    incident_with_id,
    key_of,
)

__all__ = [
    "HANDLED_FILE",
    "WHY_SIZE_MAX",
    "AmbiguousIncident",
    "HandledIncidents",
    "HandlingFailed",
    "InvalidAct",
    "UnknownIncident",
    "check_act",
    "incident_with_id",
    "key_of",
]
