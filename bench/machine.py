"""The machine and the code of a measurement: processor, cores, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def machine() -> dict[str, Any]:
    """Return {cpu, cores, memory_gib, kernel, python}. Two rows are comparable only if these are equal."""
    return {
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def commit(tree: Path = ROOT) -> str:
    """Return a checkout's short commit, with "+" if tracked files differ from it; "" outside git."""
    head = _git(tree, "rev-parse", "--short=12", "HEAD")
    differs = head and _git(tree, "status", "--porcelain", "--untracked-files=no", "--", "src", "bench")
    return head + ("+" if differs else "")


def busy_cores() -> float:
    """Return the load average of the last minute: a measurement under high load is unreliable."""
    return round(os.getloadavg()[0], 2)


def _git(tree: Path, *arguments: str) -> str:
    try:
        run = subprocess.run(["git", *arguments], cwd=tree, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""


def _field(path: Path, name: str) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
