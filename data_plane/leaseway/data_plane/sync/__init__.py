"""The worker's stream to the control plane: receives deltas and probes, sends status.

Applies changes to instances and leases; of calls it reports only how many there are.
"""
