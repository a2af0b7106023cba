"""Configuration: from files and resources to typed server specs, and the watch (DESIGN §§2-3)."""
