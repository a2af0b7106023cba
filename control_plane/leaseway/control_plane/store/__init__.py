"""The durable store: what belongs to no process and must outlive the control plane.

`port` says what a store does; `memory`, `sqlite` and `postgresql` do it, the latter with a
connection string that `references` reads. Imports only `wire`.
"""
