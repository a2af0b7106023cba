"""The encrypted file of secrets and its key.

The command writes it, workers read it; the SDK does not import it.
"""
