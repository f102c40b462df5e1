import random


def row_strategy(history):
    """history: list of (my_move, opponent_move), oldest first. Returns 0 or 1."""
    return 0 if random.random() < 0.7 else 1
