"""A small story engine: characters, places and things, plots of beats, and many ways to say each beat."""
