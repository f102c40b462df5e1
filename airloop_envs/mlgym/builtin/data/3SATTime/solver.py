def solve(num_vars, clauses):
    """clauses: lists of non-zero ints, -3 meaning "not x3". Returns num_vars bools, or None if there is no solution."""
    found = search(clauses, {})
    return None if found is None else [found.get(v, False) for v in range(1, num_vars + 1)]


def search(clauses, values):
    while True:  # clauses of one literal leave no choice
        unit = next((c[0] for c in clauses if len(c) == 1), None)
        if unit is None:
            break
        values = {**values, abs(unit): unit > 0}
        clauses = simplify(clauses, unit)
        if clauses is None:
            return None
    if not clauses:
        return values
    literal = clauses[0][0]
    for choice in (literal, -literal):
        rest = simplify(clauses, choice)
        found = None if rest is None else search(rest, {**values, abs(choice): choice > 0})
        if found is not None:
            return found
    return None


def simplify(clauses, literal):
    """The clauses left when `literal` is true; None if one of them cannot be true any more."""
    left = []
    for clause in clauses:
        if literal not in clause:
            if -literal in clause:
                clause = [x for x in clause if x != -literal]
                if not clause:
                    return None
            left.append(clause)
    return left
