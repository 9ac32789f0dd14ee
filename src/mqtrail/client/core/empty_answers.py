"""Empty answers: how long to wait before asking again, when a broker answers at once and brings nothing.

A broker holds a pull until there is a message. One that does not, for any reason, must neither be asked thousands
of times a second nor take all of this machine's processor.
"""

from typing import Final

AT_ONCE_MS: Final = 100  # a later answer was held
FREE_COUNT: Final = 3  # empty answers in a row without a wait: a wake-up can come to nothing
WAIT_MS: Final = 10  # after the next one; it doubles
WAIT_MAX_MS: Final = 1_000  # as long as a broker holds a pull with longPollingEnable=false


class EmptyAnswers:
    """The answers about one queue."""

    __slots__ = ("_row",)

    def __init__(self) -> None:
        self._row = 0  # empty answers without one between that brought something or was held

    def wait_ms(self, *, is_empty: bool, took_ms: int) -> int:
        """Note an answer that took so long; return how long to wait before the next request."""
        if not is_empty or took_ms >= AT_ONCE_MS:
            self._row = 0
            return 0
        self._row += 1
        beyond = self._row - FREE_COUNT
        return 0 if beyond <= 0 else min(WAIT_MS << min(beyond - 1, 10), WAIT_MAX_MS)
