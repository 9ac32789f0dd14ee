"""Lives of replicated groups whose masters lose power while they flush, and start again before others know.

The links to the controllers are slow. So a master often comes back while its slaves are not in sync yet: they may have
bytes that it lost, and it is elected again.
"""

from .member_group import MemberGroup

POWER_CUTS = 0.005  # of the calls of a disk
SLOW_MS = 200.0  # of a link to a controller, one way


class QuickRestarts(MemberGroup):
    """Nothing else happens to its machines."""

    restarts_ms = (1.0, 60.0)

    def __init__(self, seed: int, *, keeps_log: bool = False) -> None:
        super().__init__(seed, keeps_log=keeps_log)
        self.sync_flush = True
        self.broker_events = False
        links = [(broker, controller) for broker in self.brokers for controller in self.controllers]
        self.network.slow = {link: SLOW_MS for pair in links for link in (pair, pair[::-1])}
        for machine in self.brokers.values():
            machine.disk.rates.power_cut = POWER_CUTS

    def _cause_fault(self) -> None:
        """Only the disks end processes."""
