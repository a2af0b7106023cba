"""The durable store: what belongs to no process and must outlive the control plane.

`port` says what a store does; `memory` and `sqlite` do it. Imports only `wire`.
"""
