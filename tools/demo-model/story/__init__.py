"""A small story engine: characters, places and things, plots made of beats, and many ways to say each beat."""
