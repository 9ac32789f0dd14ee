"""The operators' interface: the work of pmq's portal, as operations of the door, onto the broker's own requests.

`looking` asks; `routes` serves it to who has an operator's token.
"""

from .looking import Facts, Looking
from .routes import looking_router
from .shapes import operator_schemas

__all__ = ["Facts", "Looking", "looking_router", "operator_schemas"]
