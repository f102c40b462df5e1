"""An environment of verifiers' second interface that compares attempts: inside an episode, as that interface does."""

import asyncio

import verifiers.v1 as vf


class WordData(vf.TaskData):
    word: str


class WordTask(vf.Task[WordData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return float(self.data.word in trace.last_reply)


class Words(vf.Taskset[WordTask, vf.TasksetConfig]):
    def load(self):
        for word in ("ant", "bee", "cat", "dog"):
            yield WordTask(WordData(word=word, prompt=f"Say {word}."), self.config.task)


class RivalsConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig()
    n: int = 3


class Rivals(vf.Env[RivalsConfig]):
    async def run(self, task, agents) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self.config.n):
                group.create_task(agents.agent.run(task))

    async def finalize(self, task, episode) -> None:
        """Of those who are right, the briefest is worth more."""
        sizes = [len(trace.last_reply) for trace in episode.traces]
        for trace in episode.traces:
            best = trace.reward > 0 and len(trace.last_reply) == min(sizes)
            trace.record_reward("briefest", float(best), weight=0.5)


__all__ = ["Rivals", "Words"]
