"""YAML and JSON files as trees with the position of each value.

Imports nothing else of `config`.
"""
