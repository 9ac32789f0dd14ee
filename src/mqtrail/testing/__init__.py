"""The embedded broker as a context manager and a pytest plugin: a real one, on free ports, in memory.

`embedded()` for plain tests, `embedded_async()` for asynchronous ones; with pytest the fixture `mqtrail_broker`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .embed import Embedded, embedded, embedded_async, embedded_config

__all__ = ["Embedded", "embedded", "embedded_async", "embedded_config"]


def __getattr__(name: str) -> Any:
    """Import on first use: pytest loads the plugin beside it in every project, with or without a broker in sight."""
    if name in __all__:
        from . import embed

        return getattr(embed, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
