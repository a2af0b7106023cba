"""Lightweight servers, so that the path to them dominates the measurement."""
