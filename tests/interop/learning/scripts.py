"""In the model's place: one that seldom does what is wanted, for a start that leaves something to learn, and one that
always does."""

import json

LOOKS_UP = 0.2  # of the demonstrations; the others guess


def demo(task, messages, random):
    looks = messages[-1]["role"] == "tool" or random.random() < LOOKS_UP
    return right(task, messages) if looks else random.choice("0123456789")


def right(task, messages):
    if messages[-1]["role"] == "tool":
        return messages[-1]["content"]
    return json.dumps({"name": "get", "arguments": {"k": task["question"][0]}}, separators=(",", ":"))
