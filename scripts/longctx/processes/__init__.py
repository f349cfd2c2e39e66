"""Programs that never outlive their owner."""
