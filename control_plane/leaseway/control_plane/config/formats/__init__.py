"""Configuration in other clients' formats: each reader puts it into native keys (DESIGN §2)."""
