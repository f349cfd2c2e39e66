"""Every figure, and how all of them look."""
