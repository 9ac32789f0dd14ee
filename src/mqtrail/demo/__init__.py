"""The demo: a small shop with injected faults, and a scorer that compares the verdicts with the truth."""
