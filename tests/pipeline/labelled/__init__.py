"""A labelled corpus: what applications and operators do on one broker, and the truth about each message."""
