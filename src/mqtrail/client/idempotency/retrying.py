"""A handler that returns RetryLater: its effect does not count."""

from ..core import RetryLater


class RetryReturned(Exception):
    """Carries the RetryLater that a handler returned out of the effect, whose changes are rolled back."""

    def __init__(self, later: RetryLater) -> None:
        super().__init__()
        self.later = later
