"""Statistics over a described data set: what is asked, what is computed, how it is said."""
