"""Learning: rewards become advantages, advantages a loss, the loss an update. Knows tokens, not tasks."""
