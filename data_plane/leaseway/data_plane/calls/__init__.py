"""One tool call: admit it, find its instance, run it, end it exactly once.

Imports leases, instances and artifacts; knows neither gRPC services nor the control plane.
"""
