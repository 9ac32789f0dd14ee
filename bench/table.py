"""The table of bench/README.md: the latest row of every figure in bench/results/, between two markers."""

from __future__ import annotations

import json
from pathlib import Path

from bench.rows import Json

RESULTS = Path(__file__).with_name("results")
README = Path(__file__).with_name("README.md")
RETIRED = frozenset({"pipeline/ingest"})  # only in old results: it included silver, which has no peer
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def latest_rows() -> list[Json]:
    """Return the latest row of each existing figure, in the order of the run that measured it."""
    rows: dict[str, Json] = {}
    for path in sorted(RESULTS.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows.pop(row["figure"], None)
            rows[row["figure"]] = row
    return [row for name, row in rows.items() if name not in RETIRED]


def table(rows: list[Json]) -> str:
    """Return the rows as a Markdown table, with the machines and commits of the measurements."""
    if not rows:
        return "No figure has been taken yet: run `make bench`, then `python -m bench --table`.\n"
    lines = ["| figure | what | ours | peer | ours ÷ peer | bar | met |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        peer = _number(row["peer"]) + _range(row["peer_range"]) if row["peer"] is not None else "–"
        ratio = f"**{_number(row['ratio'])}**{_range(row['ratio_range'])}" if row["ratio"] is not None else "–"
        met = {True: "yes", False: "**no**", None: ""}[row["met"]]
        ours = f"{_number(row['ours'])}{_range(row['ours_range'])} {row['unit']}"
        lines.append(f"| {row['figure']} | {_what(row)} | {ours} | {peer} | {ratio} | {row['bar'] or ''} | {met} |")
    return "\n".join(lines) + "\n\n" + _origin(rows)


def write_table() -> int:
    """Write the table between the markers of bench/README.md. Exit code 1: they are missing."""
    before, begin, rest = README.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        print(f"bench: {README.name} lacks the markers {BEGIN} and {END}: put them where the table belongs")
        return 1
    README.write_text(f"{before}{BEGIN}\n\n{table(latest_rows())}\n{END}{after}")
    return 0


def _what(row: Json) -> str:
    text = str(row["what"])
    if row["peer_name"]:
        text += f", beside {row['peer_name']}"
    if any(row["errors"].values()):
        text += f" (error replies: ours {row['errors']['ours']}, peer {row['errors']['peer']})"
    return text.replace("|", "\\|")


def _origin(rows: list[Json]) -> str:
    machines = {json.dumps(row["machine"], sort_keys=True) for row in rows}
    machine_texts = [
        f"{m['cores']} cores of {m['cpu']}, {m['memory_gib']} GiB, Linux {m['kernel']}, Python {m['python']}"
        for m in map(json.loads, sorted(machines))
    ]
    commits = sorted({row["commit"] for row in rows})
    days = sorted({row["when"][:10] for row in rows})
    return f"Taken on {' and '.join(machine_texts)}; commit {', '.join(commits)}; {', '.join(days)}.\n"


def _range(span: list[float] | None) -> str:
    return f" [{_number(span[0])}–{_number(span[1])}]" if span and span[0] != span[1] else ""


def _number(value: float) -> str:
    """Return a number with three significant digits and a thin space as thousands separator."""
    if abs(value) >= 1000:
        return f"{round(value, -2 if abs(value) >= 100_000 else 0):,.0f}".replace(",", "\u202f")
    return f"{value:.3g}"
