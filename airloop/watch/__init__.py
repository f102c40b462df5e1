"""Looking at a run: the terminal, the plot, the sinks."""
