"""Turns, workers, leases and faults in a world without real time, chosen by a seed."""
