"""The scenarios by name, one coroutine each: what is done, and what is owed. Their docstrings say what is special."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.pipeline.labelled.scene import Scene

Scenario = Callable[[Scene], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Add a scenario under its name."""
    SCENARIOS[function.__name__.replace("_", "-")] = function
    return function
