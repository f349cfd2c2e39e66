"""Queries behind a resident prefix: hot TTFT, with the cached tokens as proof."""
