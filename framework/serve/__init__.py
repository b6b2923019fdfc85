"""One server for people and other agents: runs that outlive requests, every protocol, a console."""
