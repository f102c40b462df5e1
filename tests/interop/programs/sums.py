"""In the model's place, for sums of reasoning-gym: a supervised start that is right one time in three."""

import re


def demo(task, messages, random):
    return oracle(task) if random.random() < 0.35 else str(random.randint(-9, 18))


def oracle(task):
    ((a, sign, b),) = re.findall(r"(\d) ([+-]) (\d) =", task["question"])
    return str(int(a) + int(b) if sign == "+" else int(a) - int(b))
