"""Measured rows, one module per family; `catalogue` lists them all."""
