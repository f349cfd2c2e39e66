"""Decode with a filled KV cache in the summary."""

from longctx.results.mode import ResultsFacet

# Nothing is prefilled, so decode throughput is all there is.
FACET = ResultsFacet(metrics=("decode_tok_s",), ttft_is_cold=False)
