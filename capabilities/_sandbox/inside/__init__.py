"""Code that runs inside the sandbox process: standard library only, started as a script.

It is mounted read-only into the sandbox. The agent's process never imports it.
"""
