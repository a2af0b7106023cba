"""The kit: a small MCP server over stdio with the time and the files below one folder.

Started as `python -m leaseway.data_plane.kit [ROOT]`, by hand or by a worker's configuration. It
is a server like any other: nothing here knows Leaseway, save for how its spans are exported.
"""
