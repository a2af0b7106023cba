"""The worker's stream to the control plane: deltas, probes, status, conversion.

Changes instances and leases; imports nothing of calls.
"""
