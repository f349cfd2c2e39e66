"""What the KV cache of a model takes: groups of layers, pages, memory of each rank."""
