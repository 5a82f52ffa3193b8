"""The stamps on every letter: recorders in each process, spools on disk, spans for OTLP, readers for the console.

Knows no class of the engine: it is handed ids, counts and times.
"""
