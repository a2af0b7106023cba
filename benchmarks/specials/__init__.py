"""What is no closed loop of calls: leases, memory, the control plane, a mute neighbour."""
