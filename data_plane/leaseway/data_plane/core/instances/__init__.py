"""When instances start, rest and are replaced: backoff, circuit, age, idleness, spares.

Pure: time is a parameter. Imports nothing of the data plane.
"""
