"""The ways to start a server: a local Python, a container, or one that is running already."""
