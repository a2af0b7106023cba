"""Pure decisions of a worker: desired state, tools, arguments, leases. No IO, clock or protobuf."""
