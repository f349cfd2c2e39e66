"""Families of models: each turns the fields of a config.json into layers."""
