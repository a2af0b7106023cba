"""What a variant offers, compiled when the registry commits so that a call only looks up.

Tools with the checks of their arguments and policy, prompts and resources. Pure; imports nothing of
the data plane.
"""
