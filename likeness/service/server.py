"""How `likeness serve` starts and ends: Granian's processes, each with the model and the routes.

The first process loads nothing: it starts the others, says when they answer, starts those anew that
crash, and ends them at Ctrl-C and SIGTERM. What a process cannot load is said here, too.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.cores import num_cores
from eval.errors import LikenessError
from eval.temporary import temporary_folder
from likeness.included import about
from likeness.models.filterbanks import Frontend
from likeness.thresholds import Rule

if TYPE_CHECKING:
    from toolkit.gallery.gallery import Gallery

# By this name prometheus_client finds where the processes of a server count together.
_METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
MIN_TOKEN = 16  # characters
_CONNECTIONS = 400  # of one process; further ones wait until one of them ends
_HEAD_MILLISECONDS = 10_000  # for the headers of a request
_END_SECONDS = 15  # for the answers that are being given when the server is told to end


@dataclass(frozen=True)
class Setup:
    """What a server serves, and to whom: the options of `likeness serve`.

    Attributes:
        model: The model, as for `likeness verify`.
        rule: What decides.
        gallery: The folder or the address of the gallery; None for no gallery.
        host: Where it listens.
        port: 0 is a free one.
        names: Names by which it may be addressed, beside `host`.
        token: Of 16 characters or more; where it is empty one is made and printed.
        calibration: The calibration that somebody named.
        thresholds: The file of stored thresholds that somebody named.
        detector: Finds the faces of photographs.
        frontend: The filterbanks of an .onnx model.
        trust: Packages and files that the model may import.
        examples: A folder of files that the page offers.
        keeps_media: Whether small pictures and sounds of enrolments are kept.
        max_bytes: Of one request.
        workers: How many processes serve.
        threads: Uploads that each of them works on at once; 0 divides the cores.
        certificate: A file in PEM, with `key`, for TLS.
        key: The file of its key.
    """

    model: str
    rule: Rule
    gallery: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    names: Sequence[str] = ()
    token: str = field(default="", repr=False)
    calibration: Path | None = None
    thresholds: Path | None = None
    detector: Path | None = None
    frontend: Frontend = "wespeaker"
    trust: Sequence[str] = ()
    examples: Path | None = None
    keeps_media: bool = False
    max_bytes: int = 16 * 2**20
    workers: int = 1
    threads: int = 0
    certificate: Path | None = None
    key: Path | None = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in ("127.0.0.1", "::1")


def start(
    setup: Setup, *, say: Callable[[str], object] = print, warn: Callable[[str], object] = print
) -> None:
    """Serve until Ctrl-C or SIGTERM. The address is printed when the server can be asked.

    Args:
        setup: What is served.
        say: Prints a line.
        warn: Prints a warning.

    Raises:
        LikenessError: The token is too short, or what was named cannot be served.
        OSError: The address cannot be bound.
        ImportError: A package is missing.
    """
    from granian import Granian
    from granian.constants import HTTPModes, Interfaces
    from granian.http import HTTP1Settings
    from granian.log import LogLevels

    makes_token = not setup.token
    token = setup.token or secrets.token_urlsafe(24)
    if len(token) < MIN_TOKEN:
        raise LikenessError(
            f"the token has {len(token)} characters; at least {MIN_TOKEN} are needed, so that it "
            "cannot be guessed"
        )
    host, port = _free_address(setup.host, setup.port)
    setup = replace(setup, token=token, host=host, port=port, names=(*setup.names, setup.host))
    receiver, sender = multiprocessing.Pipe(duplex=False)
    failures: list[Exception] = []
    server = Granian(
        "likeness",
        address=host,
        port=port,
        interface=Interfaces.ASGI,
        workers=setup.workers,
        http=HTTPModes.http1,
        websockets=False,
        backpressure=_CONNECTIONS,
        http1_settings=HTTP1Settings(header_read_timeout=_HEAD_MILLISECONDS),
        workers_kill_timeout=_END_SECONDS,
        ssl_cert=setup.certificate,
        ssl_key=setup.key,
        log_level=LogLevels.critical,
    )

    def hear() -> None:
        """Say that the server answers as soon as each process does."""
        num_loaded = 0
        while (message := _received(receiver)) is not None:
            if isinstance(message, Exception):
                failures.append(message)
                continue
            num_loaded += 1
            if num_loaded == setup.workers:
                _wait_until_open(host, port)
                # Before, a process that ends is one that cannot be started.
                server.respawn_failed_workers = True
                logging.getLogger("_granian").setLevel(logging.ERROR)
                modality, lines, warned = message
                for line in warned:
                    warn(line)
                for line in [*_first_lines(setup, modality, makes_token), *lines]:
                    say(line)

    hearing = threading.Thread(target=hear, daemon=True)
    hearing.start()
    with _metrics_folder(setup.workers):
        try:
            server.serve(target_loader=partial(_load, setup, sender), wrap_loader=False)
        except SystemExit:  # a process has ended that nobody told to
            sender.close()
            hearing.join()
            if server.interrupt_signal:
                return
            if failures:
                raise failures[-1] from None
            raise


def _received(pipe: Connection) -> Any:
    """The next message; None where nobody is left who could send one."""
    try:
        return pipe.recv()
    except EOFError:
        return None


def _wait_until_open(host: str, port: int) -> None:
    while True:
        try:
            socket.create_connection((host, port)).close()
            return
        except OSError:
            time.sleep(0.01)


def _first_lines(setup: Setup, modality: str, shows_token: bool) -> list[str]:
    """What the server says when it answers."""
    scheme = "https" if setup.certificate else "http"
    host = f"[{setup.host}]" if ":" in setup.host else setup.host
    fragment = f"#token={setup.token}" if shows_token else ""
    lines = [f"Likeness serves this {modality} model at {scheme}://{host}:{setup.port}/{fragment}"]
    if shows_token:
        lines.append(f"Token for enrolling and removing: {setup.token}")
    if not setup.is_local:
        lines.append("Other machines can connect: everything but the page needs the token.")
        if not setup.certificate:
            lines.append("Nothing is encrypted; put a proxy with TLS in front, or name a TLS key.")
    return lines


def _load(setup: Setup, told: Connection) -> Any:
    """Load what is served, in a process that serves it.

    Returns:
        The ASGI application.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    logging.getLogger("likeness.serve").setLevel(logging.INFO)  # not the stores' own packages
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            app, modality, lines = _application(setup)
    except (LikenessError, ImportError, OSError) as error:
        told.send(error)
        raise SystemExit(2) from None
    told.send((modality, lines, [str(warning.message) for warning in caught]))
    return app


def _application(setup: Setup) -> tuple[Any, str, list[str]]:
    """The ASGI application, the modality of the model, and lines about both."""
    from likeness import load, open_gallery
    from likeness.models.load import refuse_head
    from likeness.service.app import make_app
    from likeness.service.guard import Limits
    from likeness.service.pages import Example, read_examples
    from likeness.service.work import Extras, Service
    from likeness.thresholds import look_up
    from likeness.verification import NO_DECISION

    setup.rule.read(setup.model)  # refuses what is not stored before the model is loaded
    loaded = load(
        setup.model,
        detector=setup.detector,
        calibration=setup.calibration,
        frontend=setup.frontend,
        trust=setup.trust,
        thresholds=setup.thresholds,
    )
    comparer = loaded.comparer(setup.rule.threshold, setup.rule.far)
    model = comparer.model
    refuse_head(model, setup.model)
    threads = setup.threads or max(1, min(4, num_cores() // setup.workers))
    model.embedder.share_cores(threads)
    examples: list[Example] = []
    left_out = ""
    if setup.examples is not None:
        # Two of them, and what surrounds them in a request, have to fit.
        most = setup.max_bytes // 2 - 4096
        examples, left_out = read_examples(setup.examples, model.modality, most)
    if left_out:
        warnings.warn(f"{setup.examples}: {left_out}", stacklevel=2)
    thresholds, reason = look_up(setup.model, model.meta, setup.thresholds)
    gallery = None if setup.gallery is None else open_gallery(setup.gallery, model.meta)
    if setup.workers > 1 and gallery is not None and not gallery.shared:
        raise LikenessError(
            f"this gallery cannot be shared by {setup.workers} processes; keep it in PostgreSQL "
            "(--gallery postgresql://USER@HOST/DATABASE), or start the server with --workers 1"
        )
    service = Service(
        model,
        gallery,
        threshold=comparer.threshold,
        calibration=comparer.calibration,
        source=comparer.source,
        limits=Limits(max_bytes=setup.max_bytes, threads=threads),
        extras=Extras(thresholds, reason, examples, setup.keeps_media, about(setup.model)),
    )
    lines = [text] if (text := about(setup.model)) else []
    lines += _about_media(gallery, setup.keeps_media)
    if comparer.source:
        lines.append(f"Threshold {comparer.threshold:.4g} at {comparer.source}")
    elif comparer.threshold is None and comparer.calibration is None:
        lines.append(f"No verdict is given: {NO_DECISION}")
    app = make_app(service, token=setup.token, hosts=setup.names, local=setup.is_local)
    return app, model.modality, lines


def _about_media(gallery: Gallery | None, keeps: bool) -> list[str]:
    """What is kept beside the gallery."""
    from toolkit.gallery import media

    if gallery is None or gallery.folder is None:
        return []
    lines = []
    if keeps:
        lines.append(
            "A small picture or sound of each enrolment is kept in "
            f"{gallery.folder / media.FOLDER} until its subject is removed."
        )
    return lines


def _end_with_parent() -> None:
    """End this process when the first one is gone, which a SIGKILL lets tell nobody."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _free_address(host: str, port: int) -> tuple[str, int]:
    """The number of the host, and the port, or a free one for 0.

    Granian's processes share their port, and so would share it with another server's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as listener:
            bound: tuple[str, int] = listener.getsockname()[:2]
            return bound
    except OSError as error:
        raise OSError(
            f"port {port} of {host} cannot be listened at ({error.strerror}); stop the server that "
            "has it, or choose another --port (0 takes a free one) or --host"
        ) from None


@contextmanager
def _metrics_folder(workers: int) -> Iterator[None]:
    """Where several processes count together; a folder of another program's counts is left out."""
    before = os.environ.pop(_METRICS_FOLDER, None)
    with temporary_folder() as folder:
        if workers > 1:
            os.environ[_METRICS_FOLDER] = str(folder)
        yield
    os.environ.pop(_METRICS_FOLDER, None)
    if before is not None:
        os.environ[_METRICS_FOLDER] = before
