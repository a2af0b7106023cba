"""Tools, prompts and resources of a variant, compiled at each registry commit for quick calls.

Also the checks of arguments and policies. Pure; imports nothing of the data plane.
"""
