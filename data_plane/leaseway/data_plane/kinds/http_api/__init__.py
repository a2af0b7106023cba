"""Servers whose tools are HTTP requests."""
