"""The keys, values, filters and credentials of an entry, and every mistake with its position.

Pure. Imports `tree` and the server specification; never `formats` or `layers`. Each key has a
reader, which also describes its values in JSON Schema. Readers are not pydantic models, because
there one wrong value rejects the valid ones beside it, which layers and the last good entry need;
also, pydantic has no warnings and no line numbers.
"""
