"""An operations assistant for a warehouse, which orders goods after an approval."""
