"""Chunks at chosen depths behind claimed prefixes, from which the TTFT of whole prompts is estimated."""
