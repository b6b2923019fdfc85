"""Sandbox of the ``python`` capability, private to ``capabilities``."""
