"""Faults on purpose: processes killed, databases away, disks full, clocks moved, nonsense given."""
