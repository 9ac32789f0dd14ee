"""The environment of child processes: it is in their memory, in that of their children, and in reports of crashes."""

from collections.abc import Mapping
from typing import Final

OURS: Final = "MQTRAIL_"


def is_ours(variable: str) -> bool:
    """Return whether a variable is a setting of mqtrail: only the program that a user starts reads those."""
    return variable.startswith(OURS)


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a child process gets: none of ours, which may be secrets."""
    return {name: value for name, value in environ.items() if not is_ours(name)}
