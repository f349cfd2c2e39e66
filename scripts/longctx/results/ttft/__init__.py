"""TTFT beyond its mean: chunks of prefills, estimates from samples, first tokens that came late."""
