"""What operators want of a running system, whether by RPC or in the console.

What they look at is asked of the workers (`inspector`), what they do is noted and recorded
(`steering`). It may import the plane, `leaseway.v1` and `leaseway.wire`.
"""
