"""Media in results, and the index of those that a worker keeps as artifacts.

Pure: no IO. Imports nothing of the data plane.
"""
