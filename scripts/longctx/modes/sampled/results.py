"""Samples in the summary."""

from longctx.results.mode import ResultsFacet

# A sample is a part of a prompt: none of its times is one of the prompt's.
FACET = ResultsFacet(metrics=(), ttft_is_cold=False)
