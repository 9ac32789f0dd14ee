"""Empty answers: how long to wait before the next pull when a broker answers immediately without a message.

A broker normally holds a pull until there is a message. If it does not, the waits keep the client from sending
thousands of pulls per second and from using a whole CPU.
"""

from typing import Final

AT_ONCE_MS: Final = 100  # an answer that took at least this long was held
FREE_COUNT: Final = 3  # consecutive empty answers without a wait: a broker may wake a pull without a message for it
WAIT_MS: Final = 10  # after the next one; doubles each time
WAIT_MAX_MS: Final = 1_000  # as long as a broker holds a pull with longPollingEnable=false


class EmptyAnswers:
    """The answers about one queue."""

    __slots__ = ("_row",)

    def __init__(self) -> None:
        self._row = 0  # consecutive empty answers that were not held

    def wait_ms(self, *, is_empty: bool, took_ms: int) -> int:
        """Note an answer that took took_ms; return the milliseconds to wait before the next request."""
        if not is_empty or took_ms >= AT_ONCE_MS:
            self._row = 0
            return 0
        self._row += 1
        beyond = self._row - FREE_COUNT
        return 0 if beyond <= 0 else min(WAIT_MS << min(beyond - 1, 10), WAIT_MAX_MS)
