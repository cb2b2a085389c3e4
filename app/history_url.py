"""Which store conversations are in: a file of the data folder, or a server by URL."""

from app.history import ConversationStore
from app.settings import Settings
from app.sqlite_history import SQLiteConversationStore


def open_history(settings: Settings) -> ConversationStore:
    """The store that the settings name. Raises DataFolderError or StoreUnavailableError."""
    url = settings.history_url
    if url is None:
        return SQLiteConversationStore(settings.history_path)
    if url.startswith("postgres"):
        from app.postgres_history import PostgresConversationStore

        return PostgresConversationStore(url)
    from app.redis_history import RedisConversationStore

    return RedisConversationStore(url)
