def row_strategy(history):
    """Tit for tat. history: list of (my_move, opponent_move), oldest first. Returns 0 (cooperate) or 1 (defect)."""
    if not history:
        return 0
    return history[-1][1]
