"""The sandbox behind the code capability: private to `capabilities`."""
