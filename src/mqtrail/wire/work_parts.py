"""Parts of the work that a server does by itself, one after another: a part that fails does not stop the others.

A core cannot log. The shell sets `report` to learn about failures; without it, as in tests, an error ends the work.
"""

from collections.abc import Callable
from typing import TypeVar

__all__ = [
    "WorkParts",
]

Result = TypeVar("Result")
Report = Callable[[str], None]
"""Called with the name of a part, while its exception is being handled."""


class WorkParts:
    """Runs parts of a server's own work."""

    def __init__(self) -> None:
        self.report: Report | None = None

    def run(
        self, name: str, act: Callable[[], Result], instead: Callable[[Exception], Result] | None = None
    ) -> Result | None:
        """Run a part and return its result; if it fails, report that and return the result of instead."""
        try:
            return act()
        except Exception as error:
            if self.report is None:
                raise
            self.report(name)
            return None if instead is None else instead(error)
