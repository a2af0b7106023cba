"""Servers that are the kit, in a process of `leaseway.data_plane.kit`."""
