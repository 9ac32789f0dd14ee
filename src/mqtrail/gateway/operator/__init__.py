"""The operators' interface: the work of pmq's portal, as operations of the door, onto the broker's own requests.

`looking` asks; `changing` plans and performs changes (`topic_changes`, `group_changes`) and records them; `routes`
serves both to who has an operator's token.
"""

from .changing import OperatorChanges
from .looking import Facts, Looking
from .operations import changing_router, looking_router, operator_schemas
from .plans import Audit

__all__ = ["Audit", "Facts", "Looking", "OperatorChanges", "changing_router", "looking_router", "operator_schemas"]
