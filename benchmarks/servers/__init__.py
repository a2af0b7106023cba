"""Light servers: what is measured is the way to them."""
