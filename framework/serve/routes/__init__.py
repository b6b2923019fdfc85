"""One file a protocol; each gives its routes."""
