"""What schemathesis runs with an interpreter of its own is no module of these tests."""

collect_ignore = ["fuzz_hooks.py"]
