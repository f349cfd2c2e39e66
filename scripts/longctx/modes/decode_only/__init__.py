"""Decode behind a filled KV cache: no prefill, so no TTFT."""
