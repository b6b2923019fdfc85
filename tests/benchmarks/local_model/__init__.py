"""Benchmark of planning and calling with a small model that runs on this machine."""
