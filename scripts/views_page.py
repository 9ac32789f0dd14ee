"""Writes docs/reference/views.md from the views' declarations.

Run `python scripts/views_page.py` after a change of a view. A test compares the page with what it writes.
"""

from pathlib import Path

from mqtrail.answers import VIEWS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "views.md"
_HEAD = """# Views of a lake

[`mqtrail sql`](cli.md#mqtrail-sql) and `Answers.query` read these views with DuckDB's SQL. They contain only what is
current: the latest judgement of each message, the latest sample of each group. Times are UTC. NULL means unknown; it is
never shown as 0. Codes and reasons are defined in [Verdicts](../design/verdicts.md). The [tables](../design/lake.md)
below the views are in the schema `lake`, for example `lake.trajectories`.
"""


def rendered() -> str:
    """Return the page."""
    parts = [_HEAD]
    for view in VIEWS.values():
        rows = [f"| `{column.name}` | {column.meaning} |" for column in view.columns]
        parts.append("\n".join([f"## `{view.name}`", "", view.row, "", "| column | meaning |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(rendered(), "utf-8")
