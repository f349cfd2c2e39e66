"""What a reader sees: tables, figures, and the Markdown and HTML reports."""

import os

# Figures go to files. A notebook's shell names a backend that need not exist here, and matplotlib reads it on import.
os.environ["MPLBACKEND"] = "agg"
