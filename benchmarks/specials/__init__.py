"""Special measurements: leases, memory, the control plane and interference."""
