"""Helpers without a subject of their own: coroutines, clocks, files, threads, and plain data."""
