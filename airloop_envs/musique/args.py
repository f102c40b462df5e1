"""What a config may say about MuSiQue."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from airloop.envs.base import EnvArgs
from airloop.envs.paths import Anchored, existing
from airloop_envs.musique.library import anchored_sources
from airloop_envs.musique.retrievers import RetrieverName
from airloop_envs.musique.tools import MOST
from airloop_envs.musique.vectors import DEFAULT


class MusiqueArgs(EnvArgs):
    datasets: Annotated[str, Anchored(anchored_sources)] = Field(
        default="generated",
        min_length=1,
        description='questions: "path,config,split[:slice];path2,…"; "A | B" is the first of them that is at hand',
    )
    test_datasets: Annotated[str | None, Anchored(anchored_sources)] = Field(
        default=None, min_length=1, description="the split test; by default a share of datasets"
    )
    held_out_share: float = Field(
        default=0.15,
        gt=0,
        lt=0.5,
        description="of datasets for eval, and again for test where it has no set of its own",
    )
    noise_rate: float = Field(
        default=1.0, ge=0, le=1, description="probability with which a non-supporting paragraph is kept"
    )
    seed: int = Field(default=0, ge=0, description="of the order of questions and documents, and of the noise")
    retriever: RetrieverName = Field(default="lexical", description="how documents are found")
    embedding_model: Annotated[str, Anchored(existing)] = Field(
        default=DEFAULT, min_length=1, description="of semantic and hybrid: a directory or a hub id"
    )
    top_n: int = Field(default=2, ge=1, le=MOST, description="documents a search shows where it names no number")
    max_top_n: int = Field(default=MOST, ge=1, le=MOST, description="most documents a search may ask for")
    max_turns: int = Field(default=10, ge=1, description="replies in an episode")
    calls_per_turn: int = Field(default=0, ge=0, description="tool calls run in one reply; 0: all that it holds")
    paragraph_chars: int = Field(default=0, ge=0, description="characters of a document in search results; 0: all")
    document_chars: int = Field(default=0, ge=0, description="characters that get_document shows; 0: all")
    prompt: Literal["full", "short"] = Field(default="full", description="short: for small models")
    demo_skill: float = Field(
        default=0.5, ge=0, le=1, description="how often a demonstration searches, answers and cites well"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_n > self.max_top_n:
            raise ValueError(f"top_n = {self.top_n} is more than max_top_n = {self.max_top_n}")
        if "embedding_model" in self.model_fields_set and self.retriever in ("golden", "lexical"):
            raise ValueError(f'retriever = "{self.retriever}" uses no embedding_model; remove it')
        return self
