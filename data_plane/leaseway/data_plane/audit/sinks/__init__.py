"""Sinks of the audit: stores that acknowledge what workers ship to them, one file each.

`port` says what a sink does; `addresses` opens the sink that an address names. A sink imports its
library when it is opened, because the library is an extra.
"""
