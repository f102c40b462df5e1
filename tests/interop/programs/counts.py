"""In the model's place, where reasoning-gym asks how often a letter is in a text: replies of the right form."""


def demo(task, messages, random):
    return str(random.randint(1, 6))
