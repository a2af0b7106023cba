"""What a worker decides: holdings, toolsets, arguments, leases. No IO, no clock, no protobuf."""
