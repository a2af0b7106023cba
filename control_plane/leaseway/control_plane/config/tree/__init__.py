"""YAML, JSON and TOML files as trees with the position of each value.

Imports nothing else of `config`.
"""
