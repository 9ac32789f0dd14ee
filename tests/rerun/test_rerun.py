"""Repeated failures: which tests count as flaky, and which never do."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from .__main__ import FLAKY_MAX, fault_of
from .record import Record

ROOT = Path(__file__).resolve().parents[2]
# Fails in the first process: the file shows that there was one.
FLAKY = """
from pathlib import Path
def test_{name}():
    first = Path(__file__).with_name("{name}.ran")
    if not first.exists():
        first.touch()
        print("the first time round")
        raise RuntimeError("flaky by design")
"""
PASSING = "def test_good(): pass\n"
FAILING = "def test_bad(): assert 1 == 2\n"


def rerun(suite: Path, files: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Run a temporary suite of these files; return the exit status and the output."""
    suite.mkdir(exist_ok=True)
    (suite / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (suite / f"test_{name}.py").write_text(text)
    ledger = str(suite.with_suffix(".flaky"))
    command = [sys.executable, "-m", "tests.rerun", "--flaky", ledger, "-c", str(suite / "pytest.ini"), str(suite)]
    plain = [f"-pno:{plugin}" for plugin in ("cacheprovider", "hypothesispytest", "mqtrail")]  # quicker to start
    done = subprocess.run(
        [*command, *plain, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def flaky_tests(suite: Path) -> list[str]:
    """Return the tests in the file of flaky tests."""
    ledger = suite.with_suffix(".flaky")
    return ledger.read_text().splitlines() if ledger.exists() else []


@pytest.mark.slow
def test_flaky_test_is_named_with_its_first_failure(tmp_path: Path) -> None:
    """A test that passes alone does not fail the run; the output of its first failure is printed."""
    suite = tmp_path / "suite"
    status, output = rerun(suite, {"a": FLAKY.format(name="once"), "b": PASSING}, "-n", "1")
    assert status == 0, output
    assert flaky_tests(suite) == ["test_a.py::test_once"]
    reported = output.partition("rerun: FLAKY: test_a.py::test_once")[2]
    assert "RuntimeError: flaky by design" in reported
    assert "the first time round" in reported
    assert "1 failed, 1 passed in" in output  # pytest's closing line of the whole run
    assert "rerun: 2 tests ran: 1 flaky, 0 failed twice" in output


@pytest.mark.slow
def test_second_failure_fails_the_run(tmp_path: Path) -> None:
    """A test that also fails alone fails the run; a flaky one beside it is still reported."""
    suite = tmp_path / "suite"
    status, output = rerun(suite, {"a": FLAKY.format(name="once"), "b": FAILING})
    assert status == 1, output
    assert flaky_tests(suite) == ["test_a.py::test_once"]
    assert "rerun: FAILED: test_b.py::test_bad\nfailed again when run alone" in output


@pytest.mark.slow
def test_limit_holds_for_all_runs_of_a_ledger(tmp_path: Path) -> None:
    """After FLAKY_MAX flaky tests, a further failure ends the run without a repetition."""
    suite = tmp_path / "suite"
    suite.with_suffix(".flaky").write_text("".join(f"test_before.py::test_{n}\n" for n in range(FLAKY_MAX)))
    status, output = rerun(suite, {"a": FLAKY.format(name="once")})
    assert status == 1, output
    assert f"1 failed tests after {FLAKY_MAX} flaky ones in this CI run, not run again" in output


@pytest.mark.slow
def test_limit_holds_for_suites_that_run_at_once(tmp_path: Path) -> None:
    """Flaky tests that another suite lists meanwhile are kept, and count."""
    suite = tmp_path / "suite"
    ledger = suite.with_suffix(".flaky")
    others = "".join(f"test_other.py::test_{n}\n" for n in range(FLAKY_MAX))
    test = f"{FLAKY.format(name='once')}    Path({str(ledger)!r}).write_text({others!r})\n"  # by the run alone
    status, output = rerun(suite, {"a": test})
    assert status == 1, output
    assert len(flaky_tests(suite)) == FLAKY_MAX + 1
    assert f"FAILED: {FLAKY_MAX + 1} flaky tests in this CI run" in output


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_crash_is_a_failure(tmp_path: Path, workers: str) -> None:
    """A dead process is never flaky, even if its test would pass the second time and the status is 0."""
    crash = FLAKY.format(name="once").replace('raise RuntimeError("flaky by design")', "import os; os._exit(0)")
    status, output = rerun(tmp_path / "suite", {"a": crash, "b": PASSING}, "-n", workers)
    assert status == 1, output
    assert "rerun: FAILED: " in output
    assert "once more" not in output


@pytest.mark.slow
def test_failed_collection_is_a_failure(tmp_path: Path) -> None:
    """A file whose first import fails is a failure, with or without passing tests."""
    broken = FLAKY.format(name="once") + "test_once()\n"
    status, output = rerun(tmp_path / "suite", {"a": broken, "b": PASSING}, "--continue-on-collection-errors")
    assert status == 1, output
    assert "rerun: FAILED: collection of test_a.py" in output


FAILED_ONE = Record(1, 2, 1, 1, ["a", "b"], ["a"], {"b": "output"})


@pytest.mark.parametrize(
    ("record", "status", "fault"),
    [
        (FAILED_ONE, 1, None),
        (Record(0, 1, 0, 0, ["a"], ["a"]), 0, None),
        (None, 0, "before its session was over"),
        (None, -9, "before its session was over"),
        (Record(5), 5, "no tests ran"),
        (replace(FAILED_ONE, exit_status=2), 2, "status 2, expected 0"),  # interrupted
        (replace(FAILED_ONE, exit_status=0), 1, "status 1, expected 0"),  # failed after the session
        (replace(FAILED_ONE, seen=["b"]), 1, "stopped before 1 of 2 tests"),  # --maxfail
        (replace(FAILED_ONE, counted_failures=2), 1, "for another reason"),  # a plugin failed the run as well
        (Record(1, 1, 1, 0, ["a"], ["a"]), 1, "for another reason"),  # only a plugin
        (replace(FAILED_ONE, broken=["b: worker crashed"]), 1, "b: worker crashed"),
    ],
)
def test_what_is_never_flaky(record: Record | None, status: int, fault: str | None) -> None:
    """Each failure outside the tests, as in pytest's record."""
    found = fault_of(record, status)
    assert (found is None) == (fault is None)
    assert fault is None or fault in str(found)
