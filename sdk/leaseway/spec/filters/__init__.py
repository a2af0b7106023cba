"""Filters of names and URIs by patterns, which both planes apply alike. Pure."""
