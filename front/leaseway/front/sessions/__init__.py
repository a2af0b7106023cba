"""The sessions of the front's clients: their ids, their state, their limits, and how they end.

Imports `protocol`; never a transport.
"""
