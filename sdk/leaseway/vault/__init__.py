"""The encrypted file of secrets, and its key.

The command line writes it and workers read it; the SDK never imports it.
"""
