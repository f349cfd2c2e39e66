"""What a reader sees: tables, figures, and the Markdown and HTML reports."""
