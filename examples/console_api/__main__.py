"""Prints what is wrong: the largest incidents with an example of each, then the groups that wait longest.

python -m examples.console_api http://127.0.0.1:9870 [TOKEN]
"""

from __future__ import annotations

import sys

from .client import ApiError, ConsoleApi

SHOWN_MAX = 10


def report(api: ConsoleApi) -> list[str]:
    """Return the lines. What is unknown is a line of its own, never left out."""
    lines: list[str] = []
    incidents = api.incidents()
    for one in incidents["incidents"][:SHOWN_MAX]:
        handled = one["handling"] is not None and one["handling"]["acknowledged"] is not None
        state = "acknowledged" if handled else "open"
        lines.append(f"incident {one['incident_id']} ({state}): {one['cause']}, {one['message_count']} messages")
        for example in one["examples"][:1]:
            for found in api.trace(id=example)["trajectories"][:1]:
                codes = sorted({code for group in found["groups"] for code in group["codes"]})
                lines.append(f"  for example {example} of {found['topic']}: {', '.join(codes)}")
    lines += [f"not searched: {words}" for words in incidents["scope"]["omissions"]]
    try:
        waits = api.lag()["waits"]
    except ApiError as error:  # a console without a cluster has no lag
        return [*lines, f"lag: {error.detail}"]
    for group in waits[:SHOWN_MAX]:
        waiting = "unknown" if group["lag_ms"] is None else f"{group['lag_ms'] / 1000:g} s"
        lines.append(f"group {group['group_name']}: {waiting}")
    return lines


def main() -> None:
    """Ask the console at the address, with the API token."""
    with ConsoleApi(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "") as api:
        print("\n".join(report(api)))


if __name__ == "__main__":
    main()
