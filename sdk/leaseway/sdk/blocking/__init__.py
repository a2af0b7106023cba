"""The synchronous face: twins of the asynchronous classes, and the one thread that runs them.

Imports `client`; no asynchronous module imports this folder.
"""
