"""What the rows add up to: statistics, fits, cost, and the comparison with other runs."""
