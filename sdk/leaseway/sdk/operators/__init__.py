"""What operators ask: servers, workers, leases, problems, logs, drain and revoke."""
