"""What tests of several folders share."""

PATIENCE = 100
"""Seconds after which something hangs, however busy the machine is."""
