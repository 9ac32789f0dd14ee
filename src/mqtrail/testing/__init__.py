"""The embedded broker: a real name server and broker on free ports, in memory.

Use `embedded()` in plain tests, `embedded_async()` in asynchronous ones, or the pytest fixture `mqtrail_broker`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .embed import Embedded, embedded, embedded_async, embedded_config

__all__ = ["Embedded", "embedded", "embedded_async", "embedded_config"]

if not TYPE_CHECKING:  # so that the type checker reports names that do not exist

    def __getattr__(name: str) -> Any:
        """Import on first use, because pytest loads this package's plugin in every project."""
        if name in __all__:
            from . import embed

            return getattr(embed, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
