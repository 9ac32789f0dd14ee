"""`python -m tests.fuzz.decoding`: bodies of trace messages, decoded in bulk and by `trail.trace_rows`, must agree.

A run decodes a few batches and ends.

python -m tests.fuzz.decoding --seed 7              the bodies of `python -m tests.fuzz --seed 7` again
python -m tests.fuzz.decoding --batches 100         longer
"""

import argparse
import random
import sys
import time

from tests.lake.test_decoding import assert_equal

from .grammar import Grammar

BODIES = 2_000  # bodies of a batch, which is decoded at once
CUT = 0.05  # share of truncated bodies
PUMPED = 0.01  # share of bodies with a part repeated many times
PUMPED_SIZE = 20_000  # bytes
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
            assert_equal(bodies(seed))
        except AssertionError as error:
            print(f"bulk decoder and trace_rows differ; again: python -m tests.fuzz.decoding --seed {seed}\n{error}")
            return 1
    took_s = time.monotonic() - began_s
    print(f"fuzz: seed {given.seed}, {given.batches * BODIES} trace bodies decoded alike in bulk in {took_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
