"""`python -m tests.rerun [--flaky FILE] PYTEST-ARGUMENTS...`: run pytest; run each failed test once more, alone.

A test that fails and then passes alone, in a fresh process, is flaky. Flaky tests are printed with the output of their
first failure. The run fails when a test fails twice, and when more than FLAKY_MAX tests are flaky; with --flaky FILE
that limit holds for all runs that share the file, which lists the flaky tests by name.

Only failed tests are run again. Anything else that goes wrong fails the run at once: an error in collection, a worker
or a whole process that dies, a run that is interrupted or stopped early, a run of no tests.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .record import Record

FLAKY_MAX = 3  # flaky tests allowed in a whole CI run


def run_pytest(arguments: Sequence[str], only: str | None = None) -> tuple[Record | None, int]:
    """Run pytest in a separate process; return its record, None if there is none, and its exit status."""
    with tempfile.TemporaryDirectory(prefix="mqtrail-rerun-") as folder:
        path = Path(folder) / "record.json"
        select = [] if only is None else ["--only", only]
        status = subprocess.call([sys.executable, "-m", "tests.rerun.record", str(path), *select, *arguments])
        return Record.read(path), status


def fault_of(record: Record | None, status: int) -> str | None:
    """Return the reason why a run fails even if the repeated tests pass; None: there is none."""
    if record is None:
        return f"pytest ended with status {status} before its session was over"
    if record.broken:
        return "; ".join(record.broken)
    if record.exit_status == 5 or record.collected == 0:
        return "no tests ran"
    if status != record.exit_status or status not in (0, 1):
        return f"pytest ended with status {status}, expected 0 (all passed) or 1 (tests failed)"
    if missing := record.collected - len(record.seen):
        return f"pytest stopped before {missing} of {record.collected} tests"
    if record.counted_failures != record.failed_reports or (status == 1) != bool(record.failures):
        return f"pytest ended with status {status} for another reason than its {len(record.failures)} failed tests"
    return None


def run(arguments: Sequence[str], ledger: Path | None) -> int:
    """Run pytest with these arguments, then each failed test alone; return the exit status."""
    record, status = run_pytest(arguments)
    if fault := fault_of(record, status):
        return _report(f"FAILED: {fault}")
    assert record is not None
    if not record.failures:
        return 0
    known = ledger.read_text().splitlines() if ledger is not None and ledger.is_file() else []
    if len(record.failures) + len(known) > FLAKY_MAX:
        before = f" after {len(known)} flaky ones in this CI run" if known else ""
        return _report(
            f"FAILED: {len(record.failures)} failed tests{before}, not run again: at most {FLAKY_MAX} may be"
        )
    flaky = [test for test in sorted(record.failures) if _passes_alone(test, arguments)]
    for test in flaky:
        _report(f"FLAKY: {test}\nfailed first, then passed alone. Its first failure:\n{record.failures[test]}")
    if ledger is not None and flaky:
        with ledger.open("a") as file:  # another suite may add its own meanwhile
            file.write("".join(f"{test}\n" for test in flaky))
        if (count := len(ledger.read_text().splitlines())) > FLAKY_MAX:
            return _report(f"FAILED: {count} flaky tests in this CI run: at most {FLAKY_MAX} may be")
    for test in sorted(record.failures.keys() - flaky):
        _report(f"FAILED: {test}\nfailed again when run alone")
    _report(f"{record.collected} tests ran: {len(flaky)} flaky, {len(record.failures) - len(flaky)} failed twice")
    return 0 if len(flaky) == len(record.failures) else 1


def _passes_alone(test: str, arguments: Sequence[str]) -> bool:
    _report(f"once more, alone: {test}")
    measures = any(
        argument.startswith("--cov") for argument in arguments
    )  # a single test does not reach the coverage floor
    record, status = run_pytest([*arguments, "-n", "0", *(["--no-cov"] if measures else [])], only=test)
    return record is not None and fault_of(record, status) is None and record.passed == [test]


def _report(text: str) -> int:
    print(f"rerun: {text}", flush=True)
    return 1


def main(argv: Sequence[str]) -> int:
    ledger, arguments = None, list(argv)
    if arguments[:1] == ["--flaky"]:
        _, name, *arguments = arguments
        ledger = Path(name)
    if not arguments or arguments == ["--help"]:
        print(__doc__)
        return 2
    return run(arguments, ledger)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
