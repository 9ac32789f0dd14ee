"""Benchmarks of mqtrail beside Apache RocketMQ in one run. `python -m bench` prints JSON lines."""
