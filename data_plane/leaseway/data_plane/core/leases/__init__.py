"""Which leases a worker holds, and why there is none, in sentences.

Pure: time is a parameter. Imports nothing of the data plane.
"""
