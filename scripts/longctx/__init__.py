"""Measure long-context LLM serving: TTFT and decode throughput against prompt length."""

__version__ = "0.1.0"
