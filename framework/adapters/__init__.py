"""Everything that works becomes a capability: tools, graphs, agents, servers; and the other way."""
