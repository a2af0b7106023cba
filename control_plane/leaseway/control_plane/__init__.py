"""The control plane: watches config, decides what is served, and steps aside (DESIGN §§2–5, 8)."""
