"""Media in results, and which of them a worker keeps as artifacts.

Pure: bytes in, bytes out; nothing is read or written. Imports nothing of the data plane.
"""
