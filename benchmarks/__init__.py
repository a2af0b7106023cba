"""How fast Leaseway is next to its parts and its peers: `python -m benchmarks`.

Every row runs in a process of its own, all rows in each round, so that a drift of the machine's
speed meets all of them; what is compared are the ratios within one round.
"""
