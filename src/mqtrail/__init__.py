"""mqtrail: a RocketMQ-compatible message queue that knows where every message went."""

__version__ = "0.1.0"
