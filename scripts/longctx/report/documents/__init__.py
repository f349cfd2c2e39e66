"""The report as Markdown and as one HTML page."""
