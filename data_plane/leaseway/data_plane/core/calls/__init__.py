"""Calls as instances see them, turns on an instance, and batching of results.

Pure: no IO, no clock, no protobuf. Imports nothing of the data plane.
"""
