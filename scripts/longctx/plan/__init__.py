"""What fits, how long it takes, and what the hardware allows; computed, without a GPU."""
