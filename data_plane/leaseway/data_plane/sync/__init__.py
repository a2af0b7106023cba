"""The worker's stream to the control plane: receives deltas and probes, sends status.

Applies changes to instances and leases; never imports calls.
"""
