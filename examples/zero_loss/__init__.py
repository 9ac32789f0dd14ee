"""Zero loss: jobs through a replicated queue with all that must be on, and a verifier for the trace of the run."""
