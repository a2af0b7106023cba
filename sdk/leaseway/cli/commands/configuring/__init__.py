"""Commands that read and write files: the configuration, keys and the vault.

They need no running Leaseway, but `diff` and `config`, which can ask one.
"""
