"""The durable store: what belongs to no process and must outlive the control plane.

`port` says what a store does; `memory`, `sqlite` and `postgresql` do it. `references` reads the
connection string of the latter, `mounts` says where no file may be. Imports only `wire`.
"""
