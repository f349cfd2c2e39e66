"""What a model's config.json says: layers, bytes, parameters."""
