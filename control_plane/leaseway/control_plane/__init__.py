"""The control plane: decides what workers serve (DESIGN §§2–5, 8)."""
