"""Commands that read and write files: the configuration, keys and the vault.

Only `diff` connects to a running system.
"""
