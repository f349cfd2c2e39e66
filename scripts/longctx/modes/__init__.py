"""One folder per mode; each file in it is what one stage asks of the mode."""
