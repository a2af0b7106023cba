"""The synchronous client: blocking versions of the asynchronous classes, and their loop's thread.

Imports `client`; no asynchronous module imports this package.
"""
