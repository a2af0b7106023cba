"""The catalog: lists of tools, prompts and resources, resolved names, formats of model providers.

Imports transport; never leases or calls.
"""
