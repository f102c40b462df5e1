"""What was run, why, and what came of it."""
