"""The operators' interface: the work of pmq's portal, as operations of the door, onto the broker's own requests.

`looking` asks; `changing` plans and performs changes (`topic_changes`, `queue_changes`, `group_changes`) and records
them; `operations` serves both to who has an operator's token.
"""

from .changing import OperatorChanges
from .looking import Looking
from .operations import changing_router, looking_router, operator_schemas
from .plans import Audit, DoorDatabase, Facts, QueueKeeper

__all__ = [
    "Audit",
    "DoorDatabase",
    "Facts",
    "Looking",
    "OperatorChanges",
    "QueueKeeper",
    "changing_router",
    "looking_router",
    "operator_schemas",
]
