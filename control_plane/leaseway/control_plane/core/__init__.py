"""The control plane's decisions, pure: no I/O, no clock, no protobuf."""
