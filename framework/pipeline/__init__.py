"""One attempt at one step, whoever asks for it."""
