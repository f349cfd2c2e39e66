"""What one Snakemake run does around its jobs: start-up, repair, node requests."""
