"""What a benchmark needs may be missing: its module is then no place to look for examples."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("agentdojo") else ["agentdojo_flow.py"]
