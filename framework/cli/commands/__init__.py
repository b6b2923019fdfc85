"""One module for each group of commands; what they need is imported when they run."""
