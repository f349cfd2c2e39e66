"""Starts one server, proves that it is ours, describes it and ends it."""
