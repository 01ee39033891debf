"""Where `likeness serve` listens."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Address:
    """Where the server listens, and the names that requests may ask for.

    Attributes:
        host: the address to listen at.
        port: 0 is a free one.
        names: by which the server may be addressed, beside `host`.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    names: Sequence[str] = ()

    def listen(self, number: int = 1) -> list[socket.socket]:
        """Bind the address: by one socket, or by several between which connections are divided.

        Args:
            number: Of sockets.

        Raises:
            ValueError: The system does not divide connections.
            OSError: The address cannot be bound, for instance because another server has it.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        if number > 1 and not hasattr(socket, "SO_REUSEPORT"):
            raise ValueError(
                "this system does not divide connections between processes; start the server with "
                "--workers 1"
            )
        if number > 1 and self.port:
            # Sockets that share a port share it with those of any other server that does, which
            # would get some of the requests. A socket that does not share says so.
            socket.create_server((self.host, self.port), family=family).close()
        listeners: list[socket.socket] = []
        for _ in range(number):
            port = listeners[0].getsockname()[1] if listeners else self.port
            listeners.append(
                socket.create_server(
                    (self.host, port), family=family, backlog=256, reuse_port=number > 1
                )
            )
        return listeners

    @property
    def all_names(self) -> list[str]:
        """The names, with the host unless it stands for every address of the machine."""
        return [*([] if self.host in ("0.0.0.0", "::") else [self.host]), *self.names]

    def url(self, port: int) -> str:
        """The page's address, with the port that was bound."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{port}/"
