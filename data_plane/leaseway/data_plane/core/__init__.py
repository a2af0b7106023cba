"""Decisions of a worker about desired state, tools, arguments and leases.

Pure: no I/O, no clock, no protobuf. Imports `spec` and pure modules of `wire`; nothing else of the
worker.
"""
