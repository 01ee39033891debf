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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import SimpleQueue
from pathlib import Path
from typing import Any

from likeness.eval.cores import num_cores
from likeness.eval.errors import LikenessError
from likeness.eval.temporary import temporary_folder
from likeness.included import about
from likeness.models.filterbanks import Frontend
from likeness.thresholds import Rule
from likeness.toolkit.console import say, warn

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
        allow_host: Names by which it may be addressed, beside `host`.
        token: Of 16 characters or more; where it is empty one is made and printed.
        calibration: The calibration that somebody named.
        thresholds: The file of stored thresholds that somebody named.
        detector: Finds the faces of photographs.
        min_score: Its lowest score of a face.
        frontend: The filterbanks of an .onnx model.
        trust: Packages and files that the model may import.
        examples: A folder of files that the page offers.
        keep_media: Whether small pictures and sounds of enrolments are kept.
        max_megabytes: Of one request.
        workers: How many processes serve.
        threads: Uploads that each of them works on at once; 0 divides the cores.
        tls_certificate: A file in PEM, with `tls_key`, for TLS.
        tls_key: The file of its key.
    """

    model: str
    rule: Rule
    gallery: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    allow_host: Sequence[str] = ()
    token: str = field(default="", repr=False)
    calibration: Path | None = None
    thresholds: Path | None = None
    detector: Path | None = None
    min_score: float | None = None
    frontend: Frontend = "wespeaker"
    trust: Sequence[str] = ()
    examples: Path | None = None
    keep_media: bool = False
    max_megabytes: float = 16.0
    workers: int = 1
    threads: int = 0
    tls_certificate: Path | None = None
    tls_key: Path | None = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in ("127.0.0.1", "::1")

    @property
    def max_bytes(self) -> int:
        """Of one request."""
        return round(self.max_megabytes * 2**20)


def start(setup: Setup) -> None:
    """Serve until Ctrl-C or SIGTERM. The address is printed when the server can be asked.

    Args:
        setup: What is served.

    Raises:
        LikenessError: The token is too short, or what was named cannot be served.
        OSError: The address cannot be bound.
        ImportError: A package is missing.
    """
    from granian import Granian
    from granian.constants import HTTPModes, Interfaces
    from granian.http import HTTP1Settings
    from granian.log import LogLevels

    token = setup.token or secrets.token_urlsafe(24)
    if len(token) < MIN_TOKEN:
        raise LikenessError(
            f"the token has {len(token)} characters; at least {MIN_TOKEN} are needed, so that it "
            "cannot be guessed"
        )
    host, port = _free_address(setup.host, setup.port)
    names = (*setup.allow_host, setup.host)
    started = replace(setup, token=token, host=host, port=port, allow_host=names)
    lines = _first_lines(started, makes_token=not setup.token)
    server = Granian(
        "likeness",
        address=host,
        port=port,
        interface=Interfaces.ASGI,
        workers=setup.workers,
        respawn_failed_workers=True,
        http=HTTPModes.http1,
        websockets=False,
        backpressure=_CONNECTIONS,
        http1_settings=HTTP1Settings(header_read_timeout=_HEAD_MILLISECONDS),
        workers_kill_timeout=_END_SECONDS,
        ssl_cert=setup.tls_certificate,
        ssl_key=setup.tls_key,
        log_level=LogLevels.critical,
    )
    failures: SimpleQueue[Exception] = SimpleQueue()
    num_loaded = multiprocessing.Value("i")
    with temporary_folder() as folder:
        os.environ.pop(_METRICS_FOLDER, None)
        if setup.workers > 1:  # they count together
            os.environ[_METRICS_FOLDER] = str(folder)
        try:
            load = partial(_load, started, lines, num_loaded, failures)
            server.serve(target_loader=load, wrap_loader=False)
        except SystemExit:
            if not server.interrupt_signal:  # processes crash again and again
                raise
    if not failures.empty():
        raise failures.get()


def _first_lines(setup: Setup, *, makes_token: bool) -> list[str]:
    """What the server says when it answers."""
    scheme = "https" if setup.tls_certificate else "http"
    host = f"[{setup.host}]" if ":" in setup.host else setup.host
    fragment = f"#token={setup.token}" if makes_token else ""
    lines = [f"Likeness serves this model at {scheme}://{host}:{setup.port}/{fragment}"]
    if makes_token:
        lines.append(f"Token for enrolling and removing: {setup.token}")
    if not setup.is_local:
        lines.append("Other machines can connect: everything but the page needs the token.")
        if not setup.tls_certificate:
            lines.append("Nothing is encrypted; put a proxy with TLS in front, or name a TLS key.")
    return lines


def _load(
    setup: Setup, lines: Sequence[str], num_loaded: Any, failures: SimpleQueue[Exception]
) -> Any:
    """Load what is served, in a process that serves it.

    Args:
        setup: What is served.
        lines: Said when all processes answer.
        num_loaded: How many have loaded it, a value that the processes share.
        failures: Gets the error of one that cannot, which ends the server.

    Returns:
        The ASGI application.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    logging.getLogger("likeness.serve").setLevel(logging.INFO)  # not the stores' own packages
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            app, more_lines = _application(setup)
    except (LikenessError, ImportError, OSError) as error:
        failures.put(error)
        os.kill(os.getppid(), signal.SIGTERM)
        sys.exit(2)

    def announce() -> None:
        while True:
            with suppress(OSError):
                socket.create_connection((setup.host, setup.port)).close()
                break
            time.sleep(0.01)
        for warning in caught:
            warn(str(warning.message))
        for line in [*lines, *more_lines]:
            say(line)

    with num_loaded.get_lock():
        num_loaded.value += 1
        if num_loaded.value == setup.workers:
            threading.Thread(target=announce, daemon=True).start()
    return app


def _application(setup: Setup) -> tuple[Any, list[str]]:
    """The ASGI application, and lines about it."""
    from likeness import load, open_gallery
    from likeness.models.load import refuse_head
    from likeness.service.app import make_app
    from likeness.service.guard import Limits
    from likeness.service.pages import Example, read_examples
    from likeness.service.work import Extras, Service
    from likeness.thresholds import choose, find
    from likeness.verification import NO_DECISION

    loaded = load(
        setup.model,
        detector=setup.detector,
        min_score=setup.min_score,
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
    if setup.examples is not None:
        # Two of them, and what surrounds them in a request, have to fit.
        most = setup.max_bytes // 2 - 4096
        examples = read_examples(setup.examples, model.modality, most)
    thresholds, reason = choose(find(setup.model, setup.thresholds), model.meta)
    if setup.gallery is not None and "centre" in model.meta:
        raise LikenessError(
            f"{setup.thresholds} is for two files, and not for a gallery; leave out one of them"
        )
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
        extras=Extras(
            thresholds,
            reason,
            examples,
            setup.keep_media,
            about(setup.model),
            name="/".join(Path(setup.model).parts[-2:]),
        ),
    )
    lines = [text] if (text := about(setup.model)) else []
    if comparer.source:
        lines.append(f"Threshold {comparer.threshold:.4g} at {comparer.source}")
    elif comparer.threshold is None and comparer.calibration is None:
        lines.append(f"No verdict is given: {NO_DECISION}")
    app = make_app(service, token=setup.token, hosts=setup.allow_host, local=setup.is_local)
    return app, lines


def _end_with_parent() -> None:
    """End this process when the first one is gone, which a SIGKILL lets tell nobody.

    After a SIGTERM Granian may wait for its first process (seen with Python 3.13).
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


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
