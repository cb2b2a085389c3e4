"""The chat models that a server has, by name, and the rules by which requests go to them: checked, nothing loaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.engines.entries import ModelEntry, RouteRule, faults_of
from app.errors import SettingsError
from app.privacy import readers_elsewhere
from app.settings import Settings


@dataclass(frozen=True)
class ModelTable:
    """`entries` by name; `default` is the name of the one that answers where nothing else is asked for."""

    entries: Mapping[str, ModelEntry]
    default: str
    rules: tuple[RouteRule, ...] = ()

    @classmethod
    def of(cls, settings: Settings, reserved: Sequence[str] = ()) -> "ModelTable":
        """The table of the settings. `model` names an entry, or is one itself.

        Raises SettingsError for names that do not go together, and for private requests that could leave the machine.
        """
        entries: dict[str, ModelEntry] = {}
        for entry in settings.models:
            if entry.name in entries:
                raise SettingsError(f"models: {entry.name!r} is there twice: choose another name", field="models")
            entries[entry.name] = entry
        default = settings.served_model_name or settings.model
        if settings.model in entries:
            if settings.engine_url is not None:
                raise SettingsError(
                    f"engine_url and models both say where {settings.model!r} is: leave engine_url out, or name "
                    "another model in `model`",
                    field="engine_url",
                )
            default = settings.model
        else:
            entries = {default: implicit_entry(settings, default), **entries}
        table = cls(entries, default, settings.routes)
        if faults := [*faults_of(entries, settings.routes, reserved), *_private_faults(table, settings)]:
            raise SettingsError("; ".join(faults), field="models")
        return table

    @property
    def is_one_here(self) -> bool:
        """Whether there is nothing to choose, and nothing that could leave this machine."""
        return len(self.entries) == 1 and not self.rules and self.entries[self.default].takes_private

    def names(self, use: str) -> tuple[str, ...]:
        """The models that may be used so: `generate` (by themselves) or `answer` (from documents)."""
        return tuple(name for name, entry in self.entries.items() if use in entry.uses)


def implicit_entry(settings: Settings, name: str) -> ModelEntry:
    """The model of the setting `model`, which needs no entry."""
    return ModelEntry.model_validate({"name": name, "model": settings.model, "url": settings.engine_url})


def settings_of(entry: ModelEntry, settings: Settings) -> Settings:
    """The settings that an engine for this entry runs with."""
    alone = {"model": entry.source, "served_model_name": entry.name, "engine_url": None, "models": (), "routes": ()}
    return settings.model_copy(update={**alone, **entry.engine_settings})


def local_settings(settings: Settings) -> Settings:
    """What `ragstone engine` runs with: the model that `model` names alone. Raises SettingsError for a remote one."""
    entry = next((entry for entry in settings.models if entry.name == settings.model), None)
    if entry is None:
        return settings.model_copy(update={"engine_url": None, "models": (), "routes": ()})
    if entry.url is not None:
        raise SettingsError(f"the model {entry.name!r} runs at {entry.url}: name one that runs here", field="model")
    return settings_of(entry, settings)


def _private_faults(table: ModelTable, settings: Settings) -> list[str]:
    """Why private collections would not stay here."""
    if not settings.private_collections:
        return []
    faults = []
    if not any(entry.takes_private for entry in table.entries.values() if "answer" in entry.uses):
        faults.append("private_collections: no model of this machine could answer from them: add one to `models`")
    for name in readers_elsewhere(settings):
        faults.append(f"private_collections: {name} would be sent their text, and is not on this machine")
    return faults
