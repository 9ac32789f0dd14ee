"""The verifier: proves from the lake alone that each job was done once, or names those that were not.

    a job in the lake                                    is
    without a message                                    lost: it was accepted, and never stored
    with a `done`                                        done, whatever else its trace lacks
    without one, and the group has passed it             lost: acknowledged without an effect
    without one, and the group may still do it           not covered
    with several `done` of different ids                 doubled

`prove` adds what the brokers lost, what expired unread, and offsets that were moved past messages.
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from mqtrail.answers import Answers

PASSED = {"CONSUMED", "DEAD_LETTERED", "EXPIRED", "SKIPPED", "LOST"}
PASSED_UNTRACED = ("PASSED_UNTRACED", "END_NOT_TRACED")  # UNKNOWN for these reasons: the group's offset is past it
CLAIMS = {"lost", "expired unread", "offsets ahead of processing"}


@dataclass
class Proof:
    """What the lake shows. lost and doubled: job -> why. uncovered: why it cannot tell."""

    covered: int = 0
    lost: dict[str, str] = field(default_factory=dict)
    doubled: dict[str, str] = field(default_factory=dict)
    uncovered: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """1: found a loss or a double. 3: found none, but it cannot tell. 0: there is none."""
        if self.lost or self.doubled:
            return 1
        return 3 if self.uncovered else 0


def rows(lake: Path, text: str) -> list[dict[str, object]]:
    """Return the rows of a SELECT over the lake's views."""
    with Answers(lake).query(text, now_ms()) as answer:
        return pa.Table.from_batches(answer.batches, answer.schema).to_pylist()


def verify(lake: Path, name: str, count: int) -> Proof:
    """Judge jobs 0 to count - 1 of a run."""
    proof = Proof()
    of_jobs = f"topic = '{name}-jobs'"
    sent = {str(row["job"]) for row in rows(lake, f"SELECT DISTINCT keys[1] AS job FROM messages WHERE {of_jobs}")}
    done = Counter[str]()
    for row in rows(
        lake,
        "SELECT keys[1] AS job, count(DISTINCT msg_id)::int AS times FROM messages"
        f" WHERE topic = '{name}-done' AND visible_at IS NOT NULL GROUP BY job",
    ):
        done[str(row["job"])] = int(str(row["times"]))
    states = {
        str(row["job"]): (str(row["state"]), str(row["reasons"]), str(row["msg_id"]))
        for row in rows(
            lake,
            "SELECT m.keys[1] AS job, g.state, array_to_string(g.reasons, ', ') AS reasons, m.msg_id"
            f" FROM messages AS m JOIN group_results AS g USING (cluster, msg_id) WHERE m.{of_jobs}",
        )
    }
    for job in (f"job-{number}" for number in range(count)):
        if done[job] > 1:
            proof.doubled[job] = f"done {done[job]} times"
        if done[job]:
            proof.covered += 1
        elif job not in sent:
            proof.lost[job] = "no message was stored"
        elif job not in states:
            proof.uncovered.append(f"{job}: no group is known to have it")
        else:
            state, reasons, msg_id = states[job]
            if state in PASSED or (state == "UNKNOWN" and any(one in reasons for one in PASSED_UNTRACED)):
                proof.lost[job] = f"{state}, and no effect: mqtrail trace {msg_id} --lake {lake}"
            else:
                proof.uncovered.append(f"{job}: {state} {reasons}".rstrip())
    for topic in (f"{name}-jobs", f"{name}-done"):
        answer = Answers(lake).prove(topic, now_ms())
        proof.uncovered += [f"{topic}: {limit}" for limit in answer.limits]
        for claim in answer.claims:
            if claim.name in CLAIMS and claim.found_count:
                for shown in claim.examples:
                    proof.lost.setdefault(" ".join(shown.keys), f"{claim.name}: {', '.join(shown.codes)}")
    return proof


def report(proof: Proof, count: int, shown_max: int = 5) -> str:
    """Return a proof as text."""
    lines = [f"{count} jobs, {proof.covered} done for sure"]
    for word, found in (("lost", proof.lost), ("doubled", proof.doubled)):
        lines.append(f"{word:8} {len(found) or ('cannot tell' if proof.uncovered else 'none')}")
        lines += [f"  {job}: {why}" for job, why in list(found.items())[:shown_max]]
    lines += [f"not covered: {why}" for why in proof.uncovered[:shown_max]]
    lines.append({0: "Proven: none lost, none doubled.", 1: "FOUND.", 3: "Cannot tell."}[proof.exit_code])
    return "\n".join(lines)


def now_ms() -> int:
    """Return the wall clock, epoch ms."""
    return time.time_ns() // 1_000_000
