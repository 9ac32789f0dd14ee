"""Figures: what mqtrail does beside Apache RocketMQ in one run. `python -m bench` prints JSON lines."""
