"""A connection to PostgreSQL: to a server, or to a PostgreSQL of our own (server.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from eval.errors import LikenessError
from toolkit.gallery.location import Location, masked
from toolkit.gallery.postgres.server import own_server


class Connection:
    """A connection to PostgreSQL, which is made anew where the server has ended it.

    Args:
        where: Its address, or its folder.

    Attributes:
        name: What errors call it; no password stands in it.
        is_own: Whether the PostgreSQL is one of our own, in a folder.
        errors: The exceptions of psycopg by their names.

    Raises:
        ConnectionError: It does not answer.
        LikenessError: A package is missing.
    """

    def __init__(self, where: Location):
        try:
            import psycopg
        except ImportError:
            raise LikenessError(
                "a gallery in PostgreSQL needs psycopg; run `pip install 'likeness[postgres]'`"
            ) from None
        self._psycopg: Any = psycopg
        self.errors: Any = psycopg.errors
        self._lock = RLock()
        self._connection: Any = None
        self.is_own = not where.is_server
        self.name = masked(where.place if where.is_server else f"postgresql:{where.place}")
        if where.name:
            self.name += f"#{where.name}"
        self._url = where.place if where.is_server else own_server(Path(where.place))
        with self._plain_errors():
            connection = self._connected()
            if self.is_own:  # files of the log go once they are not needed, with what was removed
                connection.execute("ALTER SYSTEM SET wal_recycle = off")
                connection.execute("SELECT pg_reload_conf()")

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Runs the block as one transaction, which is undone if the block raises.

        Yields:
            A cursor.
        """
        with self._lock, self._plain_errors():
            connection = self._connected()
            with connection.transaction(), connection.cursor() as cursor:
                yield cursor

    @contextmanager
    def alone(self) -> Iterator[Any]:
        """Runs each statement of the block for itself, for those that no transaction takes.

        Yields:
            A cursor.
        """
        with self._lock, self._plain_errors(), self._connected().cursor() as cursor:
            yield cursor

    def _connected(self) -> Any:
        """The connection; made anew where the server has ended it."""
        if self._connection is None or self._connection.closed:
            self._connection = self._psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=10,
                application_name="likeness",
                client_encoding="utf8",
                # A pooler between us and the server may give each transaction another connection.
                prepare_threshold=None,
            )
        return self._connection

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Turns PostgreSQL's errors into one sentence, in which no password stands.

        It is a ConnectionError where the server does not answer, and a ValueError where it refuses.
        """
        try:
            yield
        except self._psycopg.OperationalError as error:
            raise ConnectionError(
                f"{self.name}: the database does not answer, or broke off ({self._said(error)}); "
                "see that it runs and takes this user, and what the gallery has before you try "
                "again"
            ) from None
        except self._psycopg.errors.InsufficientPrivilege as error:
            raise LikenessError(
                f"{self.name}: the user lacks a right ({self._said(error)}); name a user who may "
                "create a schema, or let the administrator make it"
            ) from None
        except self._psycopg.Error as error:
            raise LikenessError(
                f"{self.name}: the database refuses this ({self._said(error)}); see whether it is "
                "a gallery of Likeness"
            ) from None

    def _said(self, error: Exception) -> str:
        """The first line of an error, without what the address keeps secret."""
        text = str(error).strip() or type(error).__name__
        try:
            parts = urlsplit(self._url)
        except ValueError:  # it has no host that can be; the text may quote any part of it
            return type(error).__name__
        values = [parts.password or "", *parse_qs(parts.query).get("password", [])]
        for value in values:
            for secret in {value, unquote(value)} - {""}:
                text = text.replace(secret, "***")
        return text.splitlines()[0][:200]  # cut last, or it might hold half a secret
