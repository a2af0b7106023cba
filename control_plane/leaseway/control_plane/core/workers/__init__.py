"""The control plane's state of each worker: its record, leases, sent and acknowledged snapshots.

Pure. Handles events and the time, returns actions.
"""
