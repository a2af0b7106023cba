"""The keys, values, filters and credentials of an entry, and every mistake with its position.

Pure. Imports `tree` and the server specification, but neither formats nor layers. Each key has a
reader, which also describes its values in JSON Schema. They are not pydantic models: there, one
wrong value rejects its neighbours, which layers and the last good entry need, nothing is a mere
warning, and errors have no line numbers.
"""
