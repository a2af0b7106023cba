"""What a call is while it runs, whose runs next, and when its result waits for others.

Pure: no IO, no clock, no protobuf. Imports nothing of the data plane.
"""
