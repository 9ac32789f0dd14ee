"""A pytest run that repeats failed tests once: `python -m tests.rerun`. Flaky tests are reported, not hidden."""
