"""The console in a real browser: make browser."""
