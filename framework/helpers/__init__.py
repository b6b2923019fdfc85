"""Small helpers without knowledge of agents: values, files, threads, clocks, argument checks."""
