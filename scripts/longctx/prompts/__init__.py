"""Prompts of exact length: corpus, token stream, tokenizers, shapes, validation."""
