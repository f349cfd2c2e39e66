"""The protocol: one server, its requests, and what each row may claim."""
