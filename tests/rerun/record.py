"""`python -m tests.rerun.record FILE [--only TEST] ARGUMENTS...`: one pytest run that writes a record.

FILE receives a Record as JSON if the session ends normally. Without a file the process has died.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

CRASHED = "???"  # the phase that pytest-xdist reports for a test whose worker died


@dataclass
class Record:
    """The result of one pytest run."""

    exit_status: int = 0
    collected: int = 0  # tests, after deselection
    counted_failures: int = 0  # pytest's own count of failed reports, plugins included
    failed_reports: int = 0  # the count here; a smaller one means that something other than a test failed
    seen: list[str] = field(default_factory=list)  # tests with a report of any phase
    passed: list[str] = field(default_factory=list)  # tests whose call phase passed, and no other phase failed
    failures: dict[str, str] = field(default_factory=dict)  # test -> output of its failed phases
    broken: list[str] = field(default_factory=list)  # failed collections and crashed workers: never flaky

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """Return the record; None: the run did not end normally."""
        return cls(**json.loads(path.read_text())) if path.is_file() else None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


class Recorder:
    """A pytest plugin of the controlling process, which gets the reports of pytest-xdist's workers."""

    def __init__(self, path: Path, only: str | None) -> None:
        self._path, self._only = path, only
        self._record = Record()

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        """Do not import other files for a single test: importing all takes half a minute."""
        if self._only is None or collection_path.is_dir():
            return None
        return True if collection_path != config.rootpath / self._only.partition("::")[0] else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self._only is None:
            return
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid != self._only])
        items[:] = [item for item in items if item.nodeid == self._only]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._record.failed_reports += 1
            self._record.broken.append(f"collection of {report.nodeid}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        record, test = self._record, report.nodeid
        if test not in record.seen[-1:]:
            record.seen.append(test)
        if report.failed:
            record.failed_reports += 1
            if report.when == CRASHED:
                record.broken.append(f"{test}: {report.longreprtext}")
            record.failures[test] = record.failures.get(test, "") + _output(report)
        elif report.passed and report.when == "call":
            record.passed.append(test)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        record = self._record
        record.exit_status, record.collected = int(exitstatus), session.testscollected
        record.counted_failures = session.testsfailed
        record.seen = sorted(set(record.seen))
        record.passed = sorted(set(record.passed) - record.failures.keys())
        record.write(self._path)


def _output(report: pytest.TestReport) -> str:
    sections = "".join(f"\n--- {title} ---\n{text}" for title, text in report.sections)
    return f"--- {report.when} ---\n{report.longreprtext}{sections}\n"


def main(argv: Sequence[str]) -> int:
    path, *arguments = argv
    only = None
    if arguments[:1] == ["--only"]:
        _, only, *arguments = arguments
    return int(pytest.main(arguments, plugins=[Recorder(Path(path), only)]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
