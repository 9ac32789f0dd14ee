"""State shared by the concerns of POP, besides that of the broker."""

from dataclasses import dataclass

from .checks import PopChecks
from .held_pops import HeldPops
from .orders import OrderTable
from .positions import Positions
from .revive_log import ReviveLog


@dataclass(frozen=True, slots=True, kw_only=True)
class PopState:
    """log: writer of check points and acknowledgements. pops, notices: held requests."""

    orders: OrderTable
    positions: Positions
    log: ReviveLog
    checks: PopChecks
    pops: HeldPops
    notices: HeldPops
