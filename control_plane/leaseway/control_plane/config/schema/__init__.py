"""What an entry may say: keys, values, filters and credentials, and every mistake with its place.

Pure. Imports `tree` and the server specification; knows neither formats nor layers. Each key has a
reader, which also says in JSON Schema what it takes. They are not pydantic's models: there, one
wrong value refuses its neighbours, which layers and the last good entry need, nothing is a mere
warning, and errors know no lines of a file.
"""
