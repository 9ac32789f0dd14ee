"""Pages of pmq mode, over the operators' interface of an HTTP door.

They ask what the commands of `mqtrail pmq` ask, by `mqtrail.pmq.operating`. The door checks roles and records changes.
"""

from .pages import add_pmq
from .view import PmqPortal

__all__ = ["PmqPortal", "add_pmq"]
