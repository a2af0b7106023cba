"""Commands that read and write files: the configuration, keys and the vault.

Only `diff` and `config` can query a running Leaseway; the others do not need one.
"""
