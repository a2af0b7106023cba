"""CEL rules: their expressions, and the facts of a call that they need."""
