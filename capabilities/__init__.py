"""Capabilities that come with the project; each uses only public names of the framework."""
