"""Tools, prompts and resources of a variant, compiled at each registry commit for fast calls.

Also checks arguments and policies. Pure. Imports nothing of the worker outside `core`.
"""
