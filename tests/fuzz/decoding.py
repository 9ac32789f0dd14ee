"""`python -m tests.fuzz.decoding`: bodies of trace messages, decoded in bulk and by `trail.trace_rows`, must agree.

A run decodes a few batches and ends.

python -m tests.fuzz.decoding --seed 7              the bodies of `python -m tests.fuzz --seed 7` again
python -m tests.fuzz.decoding --batches 100         longer
"""

import argparse
import random
import sys
import time
from collections.abc import Callable
from typing import Final

from mqtrail.trail import TracePlace, trace_rows
from tests.lake.test_decoding import assert_equal, decoded
from tests.machine import slowness

from .grammar import Grammar
from .limits import TRIES, TURN_S

BODIES = 2_000  # bodies of a batch, which is decoded at once
CUT = 0.05  # share of truncated bodies
PUMPED = 0.01  # share of bodies with a part repeated many times
PUMPED_SIZE = 20_000  # bytes
ROWS_S_PER_BYTE: Final = 5e-6
"""CPU time for which `trace_rows` may read a byte, beside TURN_S: a body of 4 MiB takes seconds, not an hour."""
BULK_S: Final = 2.0
"""CPU time of decoding one body in bulk: nearly all of it is DuckDB's for planning, whatever the body."""
BULK_S_PER_BYTE: Final = 20e-6
LARGE_SIZE: Final = 8_000
"""Bytes from which on a body is also decoded in bulk alone, so that no other hides what it costs."""
ALONE_MAX: Final = 3
"""Bodies decoded in bulk alone: planning takes a second of CPU time for each."""
PLACE: Final = TracePlace("c", "b", "T", 0, 0, 0, 0, "h:1")
SPOILT = (
    "\x00",
    "\x01",
    "\x02",
    ",",
    "0",
    "9",
    "-",
    "+",
    ".",
    " ",
    "\t",
    "\n",
    "\x7f",
    "\xa0",
    "٣",
    "é",
    "\U0001f600",
    "\x01SubAfter\x01",
    "\x01Pub\x01",
    "",
)


def bodies(seed: int) -> list[bytes]:
    """The bodies of one batch: trace texts, some of them cut, corrupted or very long."""
    chance = random.Random(seed)
    grammar = Grammar(chance)
    return [_body(chance, grammar) for _ in range(BODIES)]


def _body(chance: random.Random, grammar: Grammar) -> bytes:
    texts = list(grammar.trace())
    for _ in range(chance.choice((0, 0, 0, 0, 1, 3))):
        if texts:
            texts[chance.randrange(len(texts))] = chance.choice(SPOILT)
    if chance.random() < CUT:
        del texts[chance.randrange(len(texts) + 1) :]
    data = "".join(texts).encode()
    return grammar.pumped(data, PUMPED_SIZE) if chance.random() < PUMPED else data


def slow_body(found: list[bytes]) -> str:
    """Return the body that takes too much CPU time to decode; empty: none does."""
    alone = 0
    for body in found:
        ways: list[tuple[Callable[[bytes], object], float]] = [(_rows, TURN_S + ROWS_S_PER_BYTE * len(body))]
        if len(body) >= LARGE_SIZE and alone < ALONE_MAX:
            alone += 1
            ways.append((_in_bulk, BULK_S + BULK_S_PER_BYTE * len(body)))
        for decode, allowed_s in ways:
            took_s = _took_s(decode, body, allowed_s)
            if took_s > allowed_s and took_s > (allowed_s := allowed_s * slowness()):
                found_s, expected_s = f"{took_s:.2f} s of CPU", f"expected at most {allowed_s:.2f}"
                return f"{decode.__name__}: {found_s} for {len(body)} bytes, {expected_s}: {body[:200]!r}"
    return ""


def _rows(body: bytes) -> object:
    return list(trace_rows(PLACE, body))


def _in_bulk(body: bytes) -> object:
    return decoded({0: body})


def _took_s(decode: Callable[[bytes], object], body: bytes, allowed_s: float) -> float:
    """Return the CPU time of all threads, the minimum of TRIES runs: a busy machine slows some of them."""
    least_s = float("inf")
    for _ in range(TRIES):
        began_s = time.process_time()
        decode(body)
        least_s = min(least_s, time.process_time() - began_s)
        if least_s <= allowed_s:
            break
    return least_s


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.decoding", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="seed of the first batch [from the time of day]"
    )
    parser.add_argument("--batches", type=int, default=1, help=f"number of batches, {BODIES} bodies each [1]")
    given = parser.parse_args()
    began_s = time.monotonic()
    for seed in range(given.seed, given.seed + given.batches):
        try:
            assert_equal(found := bodies(seed))
        except AssertionError as error:
            print(f"bulk decoder and trace_rows differ; again: python -m tests.fuzz.decoding --seed {seed}\n{error}")
            return 1
        if problem := slow_body(found):
            print(f"{problem}\nagain: python -m tests.fuzz.decoding --seed {seed}")
            return 1
    took_s = time.monotonic() - began_s
    print(f"fuzz: seed {given.seed}, {given.batches * BODIES} trace bodies decoded alike in bulk in {took_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
