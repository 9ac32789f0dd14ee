"""The command line: argv, TOML and environment become config objects, which other rooms run with.

`main` is the program; `run` the same for tests, with its exit code. docs/reference/cli.md lists every command, option
and exit code. Commands import what they need when they run: `up` starts without look-up or Spark.
"""

from .app import main, run

__all__ = ["main", "run"]
