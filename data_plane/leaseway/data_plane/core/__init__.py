"""What a worker decides: desired state, tools, arguments, leases. No IO, no clock, no protobuf."""
