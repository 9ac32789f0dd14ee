"""A shop moves its orders from Kafka to RocketMQ, and one of its consumers back: each step is a command or a class."""
