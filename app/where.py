"""Which documents a request's search may find, as requests say it."""

from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field

from retrieval.records import Filter, Scalar


class Where(BaseModel):
    """Which documents a search may find; all conditions that are given must hold."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"source": "*.pdf", "added_after": "2026-01-01T00:00:00Z", "metadata": {"author": "Ada"}}]
        },
    )

    source: str | None = Field(
        default=None, max_length=1000, description="Pattern of sources: * any characters, ? one, […] one of these."
    )
    added_after: datetime | None = Field(default=None, description="ISO 8601; without a zone, UTC.")
    added_before: datetime | None = Field(default=None, description="ISO 8601; without a zone, UTC.")
    metadata: dict[str, Scalar | list[Scalar]] = Field(
        default_factory=dict, max_length=20, description="Key to the value that it must have, or to several."
    )

    def filter(self) -> Filter | None:
        """The search's filter; None where there is no condition."""
        if not self.model_dump(exclude_defaults=True):
            return None
        return Filter(
            source=self.source,
            added_after=_with_zone(self.added_after),
            added_before=_with_zone(self.added_before),
            metadata=self.metadata,
        )


def _with_zone(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
