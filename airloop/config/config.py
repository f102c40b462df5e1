"""A run's config: the keys of the schema, held to the rules."""

from __future__ import annotations

from typing import Self

from pydantic import ValidationInfo, model_validator

from airloop.config.cautions import cautions
from airloop.config.rules import conflicts
from airloop.config.schema import RunConfig


class Config(RunConfig):
    """One run, resolved: every key has its value, and none contradicts another."""

    def warnings(self) -> list[str]:
        """What is allowed but seldom meant."""
        return [str(caution) for caution in cautions(self)]

    @model_validator(mode="after")
    def _no_conflicts(self, info: ValidationInfo) -> Self:
        """`load_config` passes a list, to report conflicts with file and line; others get an error."""
        found = conflicts(self)
        if isinstance(info.context, list):
            info.context.extend(found)
        elif found:
            raise ValueError("; ".join(conflict.problem for conflict in found))
        return self
