"""A fuzzer: invalid and unusual frames for the servers' cores and the net layer. `python -m tests.fuzz`."""
