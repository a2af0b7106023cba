"""The Sync stream to each worker: sends deltas and probes, receives acknowledgements and reports.

Converts between protobuf and the core's values. Decisions belong to `core`.
"""
