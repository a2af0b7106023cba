"""The control plane's edges: gRPC services, and the messages they are made of."""
