"""Small environments in verifiers' second interface: rewards, a metric, and what can go wrong with them."""

import verifiers.v1 as vf

WORDS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay", "kiwi", "lark")


class WordData(vf.TaskData):
    word: str


class WordConfig(vf.TaskConfig):
    fails: bool = False
    judge: vf.JudgeConfig | None = None


class WordTask(vf.Task[WordData, vf.State, WordConfig]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        if self.config.fails:
            raise RuntimeError("a defect of the reward")
        return float(self.data.word in trace.last_reply)

    @vf.reward(weight=0.5)
    async def brief(self, trace: vf.Trace) -> float:
        return 1 / (1 + len(trace.last_reply))

    @vf.metric
    async def letters(self, trace: vf.Trace) -> float:
        return len(trace.last_reply)


class WordsConfig(vf.TasksetConfig):
    task: WordConfig = WordConfig()
    reverse: bool = False


class Words(vf.Taskset[WordTask, WordsConfig]):
    def load(self):
        for word in reversed(WORDS) if self.config.reverse else WORDS:
            yield WordTask(WordData(word=word, prompt=f"Say {word}."), self.config.task)


__all__ = ["Words"]
