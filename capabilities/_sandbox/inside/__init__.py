"""Code that runs inside the sandbox process.

It imports only the standard library and is mounted read-only. The agent's process never imports it.
"""
