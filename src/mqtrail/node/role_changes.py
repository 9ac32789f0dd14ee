"""How often a broker whose group chooses the master changed its role."""


class RoleChanges:
    """Counts changes between master and slave since the process started."""

    def __init__(self) -> None:
        self._is_master: bool | None = None  # None: it has no role yet
        self._count = 0

    def begin(self, *, is_master: bool) -> int:
        """Note the role that begins, the first or the same one too; return the count."""
        self._count += self._is_master is not None and self._is_master != is_master
        self._is_master = is_master
        return self._count
