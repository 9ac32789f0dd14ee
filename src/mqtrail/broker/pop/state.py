"""What POP's concerns share beside the broker's state."""

from dataclasses import dataclass

from .checks import PopChecks
from .held_pops import HeldPops
from .orders import OrderTable
from .positions import Positions
from .revive_log import ReviveLog


@dataclass(frozen=True, slots=True, kw_only=True)
class PopState:
    """log: where check points and acks are written. pops, notices: requests that wait for messages."""

    orders: OrderTable
    positions: Positions
    log: ReviveLog
    checks: PopChecks
    pops: HeldPops
    notices: HeldPops
