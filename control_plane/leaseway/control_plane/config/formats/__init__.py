"""Readers of other clients' configuration files, which translate them into native keys.

`detection` chooses the format of a file. Imports `layers`, `schema` and `tree`.
"""
