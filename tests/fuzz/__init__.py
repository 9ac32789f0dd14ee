"""Frames that nobody should send, at the servers' cores and at the net layer. `python -m tests.fuzz`."""
