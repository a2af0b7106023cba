"""What servers are published with, as clients' files: the registry's and those of bundles."""
