"""Start one server, prove it ours, describe it, end it."""
