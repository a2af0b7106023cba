"""The interface between calls and instances, turns on an instance, and batches of results.

Pure. Imports nothing of the worker outside `core`.
"""
