"""Real processes on the real disk: killed under load, and on a full disk. `python -m tests.crash`."""
