"""Where `likeness serve` listens."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from eval.errors import LikenessError


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

    def listen(self) -> socket.socket:
        """Bind the address and listen there.

        Raises:
            OSError: The address is not of this machine, or another server listens there.
        """
        return self._bound(self.port)

    def reserve(self) -> socket.socket:
        """Keep the address for processes that call `listen_at`; nobody connects to this socket.

        Raises:
            OSError: The address is not of this machine, or another server listens there.
            LikenessError: This system has no sockets that share a port.
        """
        if not hasattr(socket, "SO_REUSEPORT"):
            raise LikenessError(
                "this system does not divide connections between processes; start the server with "
                "--workers 1"
            )
        if self.port:
            # Sockets that share a port would share it with those of another server, too.
            self._bound(self.port).close()
        kept = socket.socket(self._family)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind((self.host, self.port))
        # Or another server might listen there as long as no process of ours does.
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        return kept

    def listen_at(self, port: int) -> socket.socket:
        """Listen at a port that `reserve` keeps, beside other processes of this server.

        The system divides connections between the sockets that listen. One whose process ends is
        gone with it, so that nobody waits there.
        """
        return self._bound(port, shares=True)

    def _bound(self, port: int, *, shares: bool = False) -> socket.socket:
        try:
            listener = socket.create_server(
                (self.host, port), family=self._family, backlog=256, reuse_port=shares
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise LikenessError(
                f"port {port} of {self.host} is in use by another server; stop it, or choose "
                "another --port (0 takes a free one)"
            ) from None
        # Connections inherit it. Without it the end of every answer waits for the client to
        # acknowledge its beginning, which takes 40 ms. asyncio would set it only for sockets whose
        # protocol is named, which those of create_server are not.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener

    @property
    def _family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    @property
    def all_names(self) -> list[str]:
        """The names, with the host unless it stands for every address of the machine."""
        return [*([] if self.host in ("0.0.0.0", "::") else [self.host]), *self.names]

    def url(self, port: int) -> str:
        """The page's address, with the port that was bound."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{port}/"
