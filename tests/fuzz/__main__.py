"""`python -m tests.fuzz`: sends frames to each target in turn, until the time is up or a bug is found.

python -m tests.fuzz --seconds 60            a seed from the clock: each run has other frames
python -m tests.fuzz --count 10000000        this number of frames, without a time limit
python -m tests.fuzz --seed 7 --target BrokerCore
python -m tests.fuzz --seed 7 --target decoding    the bulk decoder of trace text alone (tests.fuzz.decoding)
"""

import argparse
import ctypes
import gc
import logging
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import structlog

from mqtrail.wire.sql92.expressions import _compile
from mqtrail.wire.sql92.grammar import _parser

from .all_targets import ALL_TARGETS
from .limits import TRIES, Bug, Meter, SlowBug
from .targets import Target

STROKE = 200  # frames between two checks of the clock
RENEW = 5  # strokes of a life, since the store of a target is in memory
WARM = 2  # lives of each target after which memory must not grow any more
GROWTH_MAX = 96 << 20  # bytes
DECODING = "decoding"  # runs in a separate process: DuckDB maps more memory than ADDRESS_SIZE_MAX
DECODING_S_MAX = 600.0  # seconds, enough for a busy machine
ADDRESS_SIZE_MAX = 6 << 30  # bytes that this process may map


def resident() -> int:
    """Return the memory of this process in bytes, after free memory was returned to the system, without a garbage
    collection."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def fuzz(kinds: list[type[Target]], seed: int, seconds: float, count: int | None) -> int:
    """Send frames; return their number. Bug: one was found."""
    done, lives, warm = 0, 0, 0
    began_s = time.monotonic()
    while count is None or done < count:
        kind = kinds[lives % len(kinds)]
        ends_s = None if count is not None else began_s + seconds
        found, _ = confirmed(kind, seed + lives, ends_s)
        done += found
        if ends_s is not None and time.monotonic() > ends_s:
            return done
        lives += 1
        if lives == WARM * len(kinds):
            warm = resident() - Meter.lost_size
        if warm and resident() > warm + GROWTH_MAX + Meter.lost_size:
            raise Bug(f"memory grew from {warm >> 20} to {resident() >> 20} MiB in {done} frames, seed {seed}")
    return done


def confirmed(kind: type[Target], seed: int, ends_s: float | None = None) -> tuple[int, float]:
    """Run one life; return its frames and its longest turn in seconds. Bug: one was found.

    A slow turn is repeated from the same seed: it counts only if each of TRIES lives has one.
    """
    for tries in range(TRIES):
        try:
            return live(kind, seed, ends_s)
        except SlowBug as bug:
            if tries == TRIES - 1:
                raise
            print(f"once more: {str(bug)[:300]}")
    raise AssertionError


def live(kind: type[Target], seed: int, ends_s: float | None) -> tuple[int, float]:
    """Run one life of a target without garbage collections."""
    forget()
    target = kind(random.Random(seed))
    gc.collect()
    gc.freeze()
    gc.disable()
    done = 0
    try:
        while done < RENEW * STROKE and (ends_s is None or time.monotonic() < ends_s):
            target.run(STROKE)
            done += STROKE
        kept = resident()
        gc.collect()
        garbage = kept - resident()
        if garbage > kind.garbage_size:
            raise Bug(f"{garbage:,} bytes that only a garbage collection frees, expected at most {kind.garbage_size:,}")
    except Bug as bug:
        raise type(bug)(f"seed {seed} of {kind.__name__}, within {done + STROKE} frames: {bug}") from bug
    finally:
        gc.unfreeze()
        gc.enable()
        target.end()
    return done, target.meter.longest_s


def forget() -> None:
    """Empty the caches of the process, so that the lives of a seed are equal."""
    _compile.cache_clear()
    _parser()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long [60]")
    parser.add_argument("--count", type=int, help="how many frames, instead of a time")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="[from the time of day]")
    parser.add_argument("--target", choices=[*(kind.__name__ for kind in ALL_TARGETS), DECODING], help="[each in turn]")
    given = parser.parse_args()
    decoding = start_decoding(given.seed) if given.target in (None, DECODING) else None
    try:
        status = 0 if given.target == DECODING else fuzz_all(given)
        return status if decoding is None else end_decoding(decoding) or status
    finally:
        if decoding is not None:
            decoding.kill()
            decoding.wait()


def start_decoding(seed: int) -> subprocess.Popen[str]:
    """Start the fuzzer of the bulk decoder, which ends by itself."""
    command = [sys.executable, "-m", f"{__package__}.decoding", "--seed", str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end_decoding(process: subprocess.Popen[str]) -> int:
    """Print its output; return its exit code."""
    try:
        print(process.communicate(timeout=DECODING_S_MAX)[0], end="")
    except subprocess.TimeoutExpired:
        print(f"the bulk decoder: not finished after {DECODING_S_MAX:.0f} s: check whether the machine is busy")
        return 1
    return process.returncode


def fuzz_all(given: argparse.Namespace) -> int:
    """Fuzz every target, or the given one, in this process; return the exit code."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SIZE_MAX, ADDRESS_SIZE_MAX))
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)  # the frames cause warnings of every kind
    structlog.configure(wrapper_class=quiet)
    kinds = [kind for kind in ALL_TARGETS if given.target in (None, kind.__name__)]
    began_s = time.monotonic()
    try:
        done = fuzz(kinds, given.seed, given.seconds, given.count)
    except Bug as bug:
        print(bug)
        return 1
    took_s = time.monotonic() - began_s
    print(f"fuzz: seed {given.seed}, {done} frames in {took_s:.0f} s, {resident() >> 20} MiB, no bug found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
