"""How `likeness serve` starts and ends: Granian's processes, each with the model and the routes.

The first process loads nothing: it starts the others, says when they answer, starts those anew that
crash, and ends them at a signal. What a process cannot load is said here, too.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import secrets
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import SimpleQueue
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from likeness.eval.cores import num_cores
from likeness.eval.errors import LikenessError
from likeness.eval.option import Option
from likeness.eval.scoring.threshold_files import Rule
from likeness.models.bundled import FACE, VOICE, about, model_of_data, resolve_model
from likeness.models.load import Frontend, refuse_missing_model
from likeness.toolkit.console import say, warn
from likeness.toolkit.signals import is_ignored, leave, leave_signals_to_parent

if TYPE_CHECKING:
    from likeness.eval.scoring.thresholds import Thresholds
    from likeness.models.model import Model
    from likeness.models.verdicts import Comparer
    from likeness.toolkit.gallery.gallery import Gallery

MIN_TOKEN = 16  # characters
_CONNECTIONS = 400  # of one process; further ones wait until one of them ends
_HEAD_MILLISECONDS = 10_000  # for the headers of a request
_END_SECONDS = 15  # for the answers that are being given when the server is told to end
# As browsers write it: in small letters, and without the port that its scheme has by default.
_ORIGIN = re.compile(r"(?!https://.*:443$|http://.*:80$)[a-z][a-z0-9+.-]*://[a-z0-9._:[\]-]+")
_LOOK_SECONDS = 0.2  # between two looks of the first process whether it is told to end


@dataclass(frozen=True)
class Setup:
    """What a server serves, and to whom: the options of `likeness serve`.

    Attributes:
        model: As in `likeness.models.model.load`. By default likeness:face for a gallery of faces
            and for examples that are pictures, otherwise likeness:voice.
        rule: What decides.
        gallery: The folder of enrolled subjects, or another store, which is made if it does not
            exist. Without one nobody is enrolled or searched: the page compares two files.
        host: The address to listen on. 0.0.0.0 lets other machines connect, which then need the
            token for everything.
        port: The port to listen on; 0 takes a free one.
        allow_host: A further host name that requests may ask for, such as that of a proxy. There
            may be several.
        allow_origin: The origin of a page of your own that may call this service from a browser,
            such as https://app.example. There may be several.
        token: Of 16 characters or more; where it is empty one is made and printed.
        calibration: As in `likeness.models.model.load`.
        thresholds: The file of stored thresholds that somebody named.
        detector: As in `likeness.models.model.load`.
        min_score: As in `likeness.models.model.load`.
        frontend: As in `likeness.models.model.load`.
        trust: As in `likeness.models.model.load`.
        fusion: Where /verify gets a recording and a picture of each person, compare them by this
            model and another one, with this file of `likeness fit fusion` for the plain scores of
            both.
        beside: As in `likeness.models.model.Model.verify`.
        examples: A folder of recordings or images that the page offers to try, at most 24 of them.
            They are read at the start.
        keep_media: Keep a small picture, or eight seconds of sound, of each enrolment beside the
            gallery, for the page to show. Without it nothing of an upload is kept but its
            embedding.
        workers: How many processes serve. Above 1 each loads the model, and the gallery has to be
            in PostgreSQL, which they share.
        tls_certificate: A certificate in PEM, for HTTPS; --tls-key names its key.
        tls_key: Its key in PEM.
    """

    model: str = ""
    rule: Rule = field(default_factory=Rule)
    gallery: Annotated[str | None, Option(metavar="PLACE")] = None
    host: str = "127.0.0.1"
    port: Annotated[int, Option(least=0, most=65535)] = 8000
    allow_host: Sequence[str] = ()
    allow_origin: Annotated[Sequence[str], Option(metavar="ORIGIN")] = ()
    token: str = field(default="", repr=False)
    calibration: Annotated[Path | None, Option(path="file")] = None
    thresholds: Annotated[Path | None, Option(is_typed=False)] = None
    detector: Annotated[Path | None, Option(path="file")] = None
    min_score: float | None = None
    frontend: Frontend = "wespeaker"
    trust: Annotated[Sequence[str], Option(metavar="PACKAGE|FILE|FOLDER")] = ()
    fusion: Annotated[Path | None, Option(path="file")] = None
    beside: Annotated[str | None, Option(metavar="MODEL")] = None
    examples: Annotated[Path | None, Option(path="folder")] = None
    keep_media: bool = False
    workers: Annotated[int, Option(least=1, most=64)] = 1
    tls_certificate: Annotated[Path | None, Option(path="file")] = None
    tls_key: Annotated[Path | None, Option(path="file")] = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in ("127.0.0.1", "::1")


def start(setup: Setup) -> None:
    """Serve until a signal ends it. The address is printed when the server can be asked.

    Args:
        setup: What is served.

    Raises:
        LikenessError: The token is too short, or what was named cannot be served.
        OSError: The address cannot be bound.
        ImportError: A package is missing.
    """
    if not setup.model:
        setup = replace(setup, model=_default_model(setup))
    refuse_missing_model(setup.model)
    for origin in setup.allow_origin:
        if not _ORIGIN.fullmatch(origin):
            raise LikenessError(f"--allow-origin {origin}: give one origin, as https://app.example")

    from granian import Granian
    from granian.constants import HTTPModes, Interfaces
    from granian.http import HTTP1Settings
    from granian.log import LogLevels

    token = setup.token or secrets.token_urlsafe(24)
    if len(token) < MIN_TOKEN:
        raise LikenessError(f"the token has {len(token)} characters; give at least {MIN_TOKEN}")
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
    told = RawValue("b")  # that the server ends: Python drops a signal that comes during a fork
    end = _end_by_signals(server, told)
    loaded: SimpleQueue[Any] = SimpleQueue()  # of each process its lines, or why it cannot serve
    failures: list[Exception] = []
    announced = started, end, loaded, lines, failures
    threading.Thread(target=_announce, args=announced, daemon=True).start()
    try:
        server.serve(target_loader=partial(_load, started, loaded, told), wrap_loader=False)
    except SystemExit:
        if not (failures or server.interrupt_signal):  # processes crash again and again
            raise
    if failures:
        raise failures[0]
    leave(0)  # signals would disturb a longer end


def _end_by_signals(server: Any, told: Any) -> Callable[..., None]:
    """Let any number of signals end Granian's first process; returns what ends it.

    Granian's own handler takes the lock of an Event, for which a second signal waits for ever. This
    one only sets a variable, at which the first process looks.
    """
    own = os.getpid()

    def end(*_: object) -> None:
        if os.getpid() != own:  # a process that was just forked
            os._exit(0)
        told.value = server.interrupt_signal = True

    class Woken(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            while not (server.interrupt_signal or super().wait(_LOOK_SECONDS)):
                pass
            return True

    server.main_loop_interrupt = Woken()
    server.signal_handler_interrupt = server.signal_handler_reload = end
    if hasattr(signal, "SIGHUP") and is_ignored(signal.SIGHUP):
        server.signal_handler_reload = lambda *_: None
    return end


def _end_at_first_signal(loop: Any) -> Any:
    """As Granian's set_loop_signals, whose event waits for ever when it is set again."""
    from granian._granian import WorkerSignal

    event = WorkerSignal()
    is_set = False

    def end(*_: object) -> None:
        nonlocal is_set
        if not is_set:
            is_set = True
            event.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, end)
        except NotImplementedError:  # Windows
            signal.signal(number, end)
    return event


def _announce(
    setup: Setup,
    end: Callable[[], None],
    loaded: SimpleQueue[Any],
    lines: Sequence[str],
    failures: list[Exception],
) -> None:
    """Print the lines when all processes answer; end the server where one of them cannot serve."""
    for number in itertools.count(1):  # processes that are started anew are among them
        outcome = loaded.get()
        if isinstance(outcome, Exception):
            failures.append(outcome)
            end()
            return
        if number != setup.workers:
            continue
        while True:
            with suppress(OSError):
                socket.create_connection((setup.host, setup.port)).close()
                break
            time.sleep(0.01)
        warned, more_lines = outcome
        for line in warned:
            warn(line)
        for line in (*lines, *more_lines):
            say(line)


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


def _default_model(setup: Setup) -> str:
    """The model of Likeness for what is served."""
    from likeness.embedding.galleries import gallery_at
    from likeness.toolkit.gallery.gallery import exists

    if setup.gallery is not None and exists(setup.gallery):
        with gallery_at(setup.gallery) as store:
            return FACE if store.meta.get("modality") == "face" else VOICE
    return model_of_data(setup.examples) if setup.examples else VOICE


def _load(setup: Setup, loaded: SimpleQueue[Any], told: Any) -> Any:
    """Load what is served, in a process that serves it.

    Args:
        setup: What is served.
        loaded: Gets the warnings and the lines about it, or the error of what cannot be served.
        told: Whether the server is told to end.

    Returns:
        The ASGI application.
    """
    from granian import _signals

    leave_signals_to_parent()
    # by which the first process ends this one while it loads
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _signals.set_loop_signals = _end_at_first_signal
    if told.value:
        os._exit(0)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    logging.getLogger("likeness.serve").setLevel(logging.INFO)  # not the stores' own packages
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            app, lines = _application(setup)
    except (LikenessError, ImportError, OSError) as error:
        loaded.put(error)
        sys.exit(2)
    loaded.put(([str(warning.message) for warning in caught], lines))
    return app


def _application(setup: Setup) -> tuple[Any, list[str]]:
    """The ASGI application, and lines about it."""
    from likeness import load, open_gallery
    from likeness.eval.metrics.calibration import load_fusion
    from likeness.eval.scoring.threshold_files import choose, find
    from likeness.models.load import refuse_head
    from likeness.models.model import load_beside
    from likeness.models.verdicts import no_decision
    from likeness.service import _pages
    from likeness.service._app import make_app
    from likeness.service._guard import MAX_BYTES
    from likeness.service._work import Service

    loaded = load(
        setup.model,
        detector=setup.detector,
        min_score=setup.min_score,
        calibration=setup.calibration,
        frontend=setup.frontend,
        trust=setup.trust,
        thresholds=setup.thresholds,
    )
    refuse_head(loaded.loaded, setup.model)
    comparer, gallery, stored = _at_gallery(setup, loaded)
    model = comparer.model
    threads = max(1, min(4, num_cores() // setup.workers))
    model.embedder.share_cores(threads)
    examples: list[_pages.Example] = []
    if setup.examples is not None:
        # Two of them, and what surrounds them in a request, have to fit.
        examples = _pages.read_examples(setup.examples, model.modality, MAX_BYTES // 2 - 4096)
    if setup.gallery is not None and gallery is None:
        gallery = open_gallery(setup.gallery, model.meta, thresholds=stored)
    if setup.workers > 1 and gallery is not None and not gallery.shared:
        text = f"--workers {setup.workers} share a gallery in PostgreSQL only"
        raise LikenessError(f"{text}; take --workers 1")
    beside = None
    if setup.fusion is not None:
        other = Service(load_beside(loaded, setup.beside).comparer(), threads=threads)
        other.model.embedder.share_cores(threads)
        beside = other, load_fusion(setup.fusion)
    known = find(resolve_model(setup.model), setup.thresholds, stored)
    service = Service(
        comparer,
        gallery,
        threads=threads,
        slider=_pages.slider(*choose(known, model.meta)),
        examples=examples,
        keeps_media=setup.keep_media,
        about=about(setup.model),
        name="/".join(Path(setup.model).parts[-2:]),
        beside=beside,
    )
    lines = [text] if (text := about(setup.model)) else []
    if comparer.source:
        lines.append(f"Threshold {comparer.threshold:.4g} at {comparer.source}")
    elif comparer.threshold is None and comparer.calibration is None:
        lines.append(f"No verdict is given: {no_decision(stored or loaded.thresholds)}")
    if stored is not None:
        lines.append(f"The mean of {stored.data} is subtracted from all embeddings.")
    names, origins = setup.allow_host, setup.allow_origin
    app = make_app(service, token=setup.token, hosts=names, origins=origins, local=setup.is_local)
    return app, lines


def _at_gallery(setup: Setup, loaded: Model) -> tuple[Comparer, Gallery | None, Thresholds | None]:
    """What compares and decides, the gallery if it is there, and the thresholds of their place."""
    from likeness import open_gallery
    from likeness.embedding.galleries import unlabelled_thresholds
    from likeness.models._places import at_place
    from likeness.models.verdicts import Comparer
    from likeness.toolkit.gallery.gallery import exists

    model, calibration, gallery = loaded.loaded, loaded.calibration, None
    stored = unlabelled_thresholds(loaded)
    if setup.gallery is not None and exists(setup.gallery):
        gallery = open_gallery(setup.gallery, model.meta)
        stored = gallery.thresholds
    if stored is not None and "mean" not in model.meta:
        model = at_place(model, [stored])
        calibration = calibration if setup.calibration else None  # it is of the scores elsewhere
    decision = setup.rule.decide(resolve_model(setup.model), model.meta, stored)
    return Comparer(model, calibration, *decision), gallery, stored


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
            f"port {port} of {host}: {error.strerror}; choose another --port (0 takes a free one)"
        ) from None
