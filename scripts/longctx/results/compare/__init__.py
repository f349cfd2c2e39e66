"""Runs beside each other: their curves, and the verdict on each length."""
