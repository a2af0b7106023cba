"""Configuration: from a file's text to typed specs, and the watch over that file (DESIGN §§2–3)."""
