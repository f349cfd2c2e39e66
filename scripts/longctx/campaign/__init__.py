"""A campaign's configuration, its points, and the names of its files."""
