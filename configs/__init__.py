"""Settings, logging and streaming helpers. Imports nothing else of the project."""
