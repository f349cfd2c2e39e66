"""The geometry of a model from its config.json: layers, bytes, parameters, FLOPs."""
