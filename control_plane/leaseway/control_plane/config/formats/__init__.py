"""Readers of other clients' configuration files, which convert them to native keys.

`detection` chooses the format of a file. Imports `layers`, `schema` and `tree`.
"""
