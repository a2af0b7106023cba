"""A worker's edges: the gRPC services, the Sync client, and what runs behind them."""
