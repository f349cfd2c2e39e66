"""Cold prompts: the client's TTFT, the server's prefill, and decode."""
