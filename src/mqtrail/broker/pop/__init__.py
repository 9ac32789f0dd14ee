"""POP consumption: the broker hands messages out one by one and keeps who has which, clients only ack.

`Pop` is the whole of it for the broker: its request handlers, its clock, what it saves. Formats, order of events and
what a crash leaves: docs/design/pop.md.
"""

from .front import Pop, ServeHeldPop
from .held_pops import HeldPop
from .revive_log import REVIVE_GROUP
from .timing import Timing

__all__ = ["REVIVE_GROUP", "HeldPop", "Pop", "ServeHeldPop", "Timing"]
