"""The protocol: one server, its requests, and the verdict on each row."""
