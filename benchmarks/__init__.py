"""Speed of Leaseway compared with its parts and other gateways: `python -m benchmarks`.

Every row runs in its own process and once in each round, so that changes of the machine's speed
affect all rows. Comparisons use the ratios within a round.
"""
