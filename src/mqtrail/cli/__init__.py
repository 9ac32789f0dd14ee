"""The command line: turns argv, TOML and environment into the config objects of other rooms.

`main` is the program; `run` returns its exit code, for tests. docs/reference/cli.md lists every command, option and
exit code. Each command imports only the rooms that it uses: `up` imports neither look-ups nor Spark.
"""

from .app import main, run

__all__ = ["main", "run"]
