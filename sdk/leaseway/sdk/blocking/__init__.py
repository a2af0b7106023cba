"""The synchronous client: twins of the asynchronous classes, and the thread that runs their loop.

Imports `client`; no asynchronous module imports this folder.
"""
