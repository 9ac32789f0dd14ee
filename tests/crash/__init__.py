"""Real processes on the real disk: killed under load, and on a disk that is full. `python -m tests.crash`."""
