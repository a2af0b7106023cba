"""What the control plane knows of single kinds of servers: readers and checks of their keys.

A kind's part names its module (`Part.readers`). It has `READERS`, of keys that no shape describes,
and may have `complete`, which checks an entry's values together and makes settings of the spec of
them, and `tools`, which reads the key `tools` instead of the common reader. `table` has them all.
"""
