"""POP consumption: the broker delivers single messages and tracks them; clients only acknowledge.

`Pop` is its interface to the broker: request handlers, clock and saves. Formats, order of events and the effects of a
crash: docs/design/pop.md.
"""

from .front import Pop, ServeHeldPop
from .held_pops import HeldPop
from .timing import Timing

__all__ = ["HeldPop", "Pop", "ServeHeldPop", "Timing"]
