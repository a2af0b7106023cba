"""The sessions of the front's clients: their ids, their state, their limits, and how they end.

Imports messages and results; never a transport.
"""
