"""The plan: which lengths fit, how long they take, and the bounds of the hardware; computed, without a GPU."""
