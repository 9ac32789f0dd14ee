"""Asks a console over its HTTP API, with types for every answer."""
