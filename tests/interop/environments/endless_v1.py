"""Tasks without end, in verifiers' second interface."""

import itertools

import verifiers.v1 as vf
from second_v1 import WordData, WordsConfig, WordTask


class Endless(vf.Taskset[WordTask, WordsConfig]):
    INFINITE = True

    def load(self):
        for number in itertools.count():
            yield WordTask(WordData(word=str(number), prompt=f"Say {number}."), self.config.task)


__all__ = ["Endless"]
