"""Media in results, and the index of the artifacts that a worker stores.

Pure. Imports nothing of the worker outside `core`.
"""
