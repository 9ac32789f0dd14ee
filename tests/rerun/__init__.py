"""A pytest run whose failures get one more chance: `python -m tests.rerun`. What is flaky is named, not hidden."""
