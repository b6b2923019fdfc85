"""Helpers without domain knowledge: coroutines, clocks, files, threads, and plain data."""
