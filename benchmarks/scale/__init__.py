"""How the control plane grows with its fleet: `make scale`.

The real control plane runs in its own process; workers and clients are simulated in others.
"""
