"""The demo's tables: the injected faults, and how many of them the verdicts found."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .plan import ATTEMPTS_MAX, DELAY_LEVELS, HUNG_MS, HUNG_MS_DEFAULT
from .score import CodeScore
from .shop import HEARTBEAT_MS, REBALANCE_MS, ROUTE_REFRESH_MS
from .truth import Fault

CHANGED = (
    f"changed from the defaults to keep the demo short: HUNG after {HUNG_MS // 1000} s (default "
    f"{HUNG_MS_DEFAULT // 1000} s), messageDelayLevel '{DELAY_LEVELS}', {ATTEMPTS_MAX} redeliveries (default 16), "
    f"heartbeat every {HEARTBEAT_MS // 1000} s (30 s), rebalance every {REBALANCE_MS // 1000} s (20 s), "
    f"routes every {ROUTE_REFRESH_MS // 1000} s (30 s)"
)


def show_faults(faults: Iterable[Fault]) -> Table:
    """Return the table of faults that the injector caused, in addition to the handlers' planned faults."""
    table = Table(
        title="Injected faults, in addition to slow, failing and hung handlers", title_justify="left", box=None
    )
    for heading in ("fault", "description", "messages affected"):
        table.add_column(heading)
    for fault in faults:
        table.add_row(fault.name, fault.detail, f"{len(fault.keys)}" if fault.keys else "all in flight")
    return table


def show_scores(scores: Iterable[CodeScore]) -> RenderableType:
    """Return the table of expected and reported codes, missed and wrong ones in red, and an example of each below."""
    table = Table(title="Expected and reported codes", title_justify="left", box=None)
    for heading in ("code", "expected", "found", "missed", "wrong", "precision", "recall"):
        table.add_column(heading, justify="left" if heading == "code" else "right", no_wrap=True)
    examples: list[str] = []
    for row in scores:
        missed = row.expected - row.found
        bad = "bold red" if missed or row.wrong else ""
        examples += [f"{row.code} missed: {key}" for key in row.missed[:1]]
        examples += [f"{row.code} wrong: {key}" for key in row.spurious[:1]]
        table.add_row(
            row.code,
            f"{row.expected}",
            f"{row.found}",
            Text(f"{missed}", style=bad if missed else ""),
            Text(f"{row.wrong}", style=bad if row.wrong else ""),
            _share(row.precision),
            _share(row.recall),
        )
    return Group(table, *map(Text, examples))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}".rstrip("0").rstrip(".")
