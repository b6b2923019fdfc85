"""Measurements, each a module to run; none is a test."""
