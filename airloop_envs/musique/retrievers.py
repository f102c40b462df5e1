"""Four ways to rank a question's own documents for a query. A ranking is always whole; what is shown of it is cut
from it afterwards, so a fusion of two rankings is a true one for every number of documents shown."""

from __future__ import annotations

import functools
import re
import sys
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from airloop_envs.musique.questions import Document, Question

if TYPE_CHECKING:
    from airloop_envs.musique.vectors import Embedder

RetrieverName = Literal["golden", "lexical", "semantic", "hybrid"]
T = TypeVar("T")

KEPT = 512  # questions whose index stays in memory: more than are ever open at once
FUSION = 60  # of reciprocal-rank fusion, as its authors use it: 1 / (60 + rank)
WORD = re.compile(r"\w+")
# Words that say nothing about what is asked for; in twenty documents, rarity alone does not tell them.
STOPWORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be been but by did do does for from had has have he her his how if in into is it its no "
        "not of on or s she such that the their then there these they this to was were what when where which who whom "
        "whose why will with",
    )
)


class Retriever(ABC):
    @abstractmethod
    async def rank(self, question: Question, query: str) -> list[int]:
        """Ids of the documents that have to do with the query, best first; equal ones by their id."""


class Recent(Generic[T]):
    """What was made for the latest questions."""

    def __init__(self, make: Callable[[Question], T]) -> None:
        self._make = make
        self._kept: OrderedDict[str, T] = OrderedDict()

    def of(self, question: Question) -> T:
        if question.id in self._kept:
            self._kept.move_to_end(question.id)
        else:
            self._kept[question.id] = self._make(question)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return self._kept[question.id]


class Lexical(Retriever):
    """BM25 by the library bm25s, over title and text. A document without a word of the query is not found."""

    def __init__(self) -> None:
        self._indexes = Recent(_index)

    async def rank(self, question: Question, query: str) -> list[int]:
        return self.find(question, query)

    def find(self, question: Question, query: str) -> list[int]:
        asked = words(query)
        if not asked:
            return []
        index = self._indexes.of(question)
        scores = index.get_scores(asked).tolist()
        found = [i for i, score in enumerate(scores) if score > 0]
        found.sort(key=scores.__getitem__, reverse=True)  # stable: equal scores stay in the documents' order
        return [question.documents[i].id for i in found]


@functools.cache
def _bm25() -> type[Any]:
    """bm25s without JAX. Where JAX is installed the library would import it for a top-k that we do not use, and JAX
    takes three quarters of the GPU's memory for itself at once."""
    jax = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "jax"}
    sys.modules.update(dict.fromkeys((*jax, "jax"), None))  # type: ignore[arg-type]  # None: not to be had
    try:
        from bm25s import BM25
    finally:
        del sys.modules["jax"]
        sys.modules.update(jax)
    return BM25


def _index(question: Question) -> Any:
    index = _bm25()()
    # A word that no document has: an index of nothing but stopwords could not be built.
    index.index([[*words(whole(d)), "\ufdd0"] for d in question.documents], show_progress=False)
    return index


def words(text: str) -> list[str]:
    return [word for word in WORD.findall(text.lower()) if word not in STOPWORDS]


def whole(document: Document) -> str:
    return f"{document.title}. {document.text}"


class Golden(Retriever):
    """Supporting documents only: those that match the query best, then the others. What search could not spoil."""

    def __init__(self) -> None:
        self._lexical = Lexical()

    async def rank(self, question: Question, query: str) -> list[int]:
        matching = [id for id in self._lexical.find(question, query) if id in question.supporting]
        return [*matching, *sorted(question.supporting - set(matching))]


class Semantic(Retriever):
    """By the cosine between the query's vector and the documents'. Every document is found, some far away."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder

    async def rank(self, question: Question, query: str) -> list[int]:
        if not query.strip():
            return []
        likeness = await self.embedder.likeness([whole(d) for d in question.documents], query)
        order = sorted(range(len(likeness)), key=lambda i: -likeness[i])
        return [question.documents[i].id for i in order]


class Hybrid(Retriever):
    """Lexical and semantic, joined by reciprocal-rank fusion of their whole rankings."""

    def __init__(self, embedder: Embedder) -> None:
        self._parts = (Lexical(), Semantic(embedder))

    async def rank(self, question: Question, query: str) -> list[int]:
        return fuse([await part.rank(question, query) for part in self._parts])


def fuse(rankings: Sequence[Sequence[int]]) -> list[int]:
    """Best first; equal sums by the earlier ranking."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, id in enumerate(ranking, 1):
            scores[id] = scores.get(id, 0.0) + 1 / (FUSION + rank)
    return sorted(scores, key=lambda id: -scores[id])


def make_retriever(name: RetrieverName, embedding_model: str) -> Retriever:
    if name == "golden":
        return Golden()
    if name == "lexical":
        return Lexical()
    from airloop_envs.musique.vectors import Embedder

    embedder = Embedder(embedding_model)
    return Semantic(embedder) if name == "semantic" else Hybrid(embedder)
