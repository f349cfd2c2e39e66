"""What lies on disk: Parquet tables, journals, token files, locks."""
