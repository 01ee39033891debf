"""`likeness serve`: verify, identify and manage a gallery over REST, and one page for it.

FastAPI and uvicorn (the extra "serve").

Answers are JSON; errors are {"error": one sentence}. Uploads are held in memory, decoded with the
bounds of their modality, and gone with the answer; with --keep-media a small picture or sound of
each enrolment stays beside the gallery until the subject is erased. Meant for one machine or a
trusted network: there is no TLS (put a proxy in front, and name it with --allow-host) and one token
for all who may write.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import signal
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, File, Form, Request
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartParser

from eval.errors import LikenessError
from eval.formats.provenance import likeness_version
from likeness.diarisation.clusters import Clustering
from likeness.service import openapi, pages
from likeness.service.address import Address
from likeness.service.batches import Gone, Late, Workers
from likeness.service.guard import LINES, Guard
from likeness.service.limits import Limits
from likeness.service.metrics import Metrics
from likeness.service.processes import Worker
from likeness.service.slider import slider
from likeness.service.work import NO_EXTRAS, Extras, Service
from likeness.verification import NO_DECISION, Comparer
from toolkit.gallery import media
from toolkit.gallery.location import masked
from toolkit.gallery.open import open_gallery
from toolkit.gallery.rules import Gallery, NotEnrolled

_PLACE = re.compile(r"\b(postgres(ql)?|qdrant|lance(db)?|faiss):[^\s,;()]*[^\s,;():.]")
MAX_FILES = 10  # of one enrolment
_ON_LOOPBACK = Address()
MAX_EMBEDDED = 256  # files of one request for embeddings
EMBEDDED_AHEAD = 16  # of them that wait or are worked on at once
MIN_TOKEN = 16  # characters
_log = logging.getLogger("likeness.serve")
Upload = Annotated[bytes, File()]
Uploads = Annotated[list[bytes], File(max_length=MAX_FILES)]
Face = Annotated[int | None, Form(ge=0, le=9999)]
Faces = Annotated[list[Annotated[int, Form(ge=0, le=9999)]] | None, Form(max_length=MAX_FILES)]
Number = Annotated[int | None, Form(ge=1, le=100)]  # of speakers
Work = Callable[..., Coroutine[Any, Any, Any]]  # work(task, ...) -> what task(...) returns


def make_app(service: Service, *, token: str, hosts: Sequence[str] = (), local: bool = True) -> Any:
    """The ASGI application.

    Args:
        service: what requests ask for; without a gallery, what needs one is answered with 404.
        token: what enrolling, replacing and removing need.
        hosts: names by which the server may be addressed, beside loopback's.
        local: whether only this machine can connect.
    """
    app = FastAPI(
        title="Likeness",
        version=likeness_version(),
        docs_url=None,
        redoc_url=None,
        description=str(__doc__).partition("\n\n")[2],
    )
    # Otherwise Starlette puts uploads of over 1 MiB into files. This holds for the whole process.
    MultiPartParser.spool_max_size = service.limits.max_bytes + 1
    metrics = Metrics()
    if (store := service.gallery) is not None:
        metrics.show("likeness_gallery_subjects", "Subjects who are enrolled.", lambda: len(store))
    work = _in_threads(service.limits)
    _add_pages(app)
    _add_state(app, service, metrics, local)
    _add_examples(app, service)
    _add_questions(app, service, work)
    _add_embed(app, service, work)
    _add_diarisation(app, service, work)
    _add_gallery(app, service, work)
    _add_errors(app)
    return Guard(
        app,
        token=token,
        hosts=hosts,
        local=local,
        limits=service.limits,
        metrics=metrics,
        policy=pages.content_policy(),
    )


def _in_threads(limits: Limits) -> Work:
    """Runs tasks in worker threads, within their time, and gives their errors a status."""
    workers = Workers(limits.threads, limits.work_seconds)

    async def work(task: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return await workers.work(task, *arguments, **named)
        except Late as late:
            raise HTTPException(
                503,
                f"this took longer than {limits.work_seconds:g} s; {late}",
                {"Retry-After": "5"},
            ) from None
        except Gone as gone:
            raise HTTPException(499, str(gone)) from None  # which nobody reads but the metrics
        except (KeyError, NotEnrolled) as error:
            raise HTTPException(404, str(error.args[0])) from None
        except ValueError as error:
            # A client need not know where the gallery lies.
            raise HTTPException(422, _PLACE.sub("the gallery", str(error))) from None

    return work


def _add_pages(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def home() -> HTMLResponse:
        return HTMLResponse(pages.home())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(pages.docs(app.openapi()))


def _add_state(app: FastAPI, service: Service, metrics: Metrics, local: bool) -> None:
    @app.get("/health", responses=openapi.HEALTH)
    async def health() -> dict[str, Any]:
        """What is served: the model and its modality, how it decides, how many are enrolled."""
        model, gallery = service.model, service.gallery
        # A database may take its time, in which the server answers others.
        size = None if gallery is None else await asyncio.to_thread(len, gallery)
        return {
            "status": "ok",
            "modality": model.modality,
            "model": model.digest,
            "similarity": model.similarity,
            "norm_is_quality": model.norm_is_quality,
            "threshold": service.threshold,
            "source": service.source,
            "calibrated": service.calibration is not None,
            "gallery": size,
            "max_bytes": service.limits.max_bytes,
            "token_for_reading": not local,
            "takes": service.takes._asdict(),
            "keeps_media": service.extras.keeps_media,
            "about": service.extras.about,
            "examples": len(service.extras.examples),
        }

    @app.get("/thresholds")
    async def thresholds() -> dict[str, Any]:
        """What each threshold means: the stored error rates of the model, or the reason why there
        are none. A rate that fewer than ten trials stand behind is given as ten trials' share.
        """
        return slider(service.extras.thresholds, service.extras.no_thresholds)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> PlainTextResponse:
        """Counts and times in Prometheus' text format."""
        text = await asyncio.to_thread(metrics.text)  # which asks the gallery, as /health does
        return PlainTextResponse(text, media_type=CONTENT_TYPE_LATEST)


def _add_examples(app: FastAPI, service: Service) -> None:
    @app.get("/examples")
    async def listed_examples() -> dict[str, Any]:
        """The files to try that the server was started with, by their numbers."""
        return {
            "examples": [
                {"name": one.name, "bytes": len(one.content)} for one in service.extras.examples
            ]
        }

    @app.get("/examples/{number}", response_class=Response)
    async def example(number: Annotated[int, InPath(ge=0)]) -> Response:
        """One of the files to try."""
        examples = service.extras.examples
        if number >= len(examples):
            raise HTTPException(404, f"there are {len(examples)} examples, numbered from 0")
        return Response(examples[number].content, media_type=examples[number].media_type)


def _needs_gallery(service: Service) -> Any:
    """A dependency of what needs a gallery: 404 without one."""

    def gallery() -> None:
        if service.gallery is None:
            raise HTTPException(404, "this server has no gallery; start it with --gallery DIR")

    return Depends(gallery)


def _add_questions(app: FastAPI, service: Service, work: Work) -> None:
    @app.post("/verify", responses=openapi.VERIFY)
    async def verify(
        first: Upload, second: Upload, first_face: Face = None, second_face: Face = None
    ) -> dict[str, Any]:
        """Are two files of one subject? Score, probability if there is a calibration, decision, and
        the norms: a measure of quality where /health says so. Of photographs the faces may be
        chosen, by the numbers that /faces gives.
        """
        numbers = {"first": first_face, "second": second_face}
        chosen = {side: face for side, face in numbers.items() if face is not None}
        return dict(await work(service.verify, first, second, chosen, joins=True))

    @app.post("/faces", responses=openapi.FACES)
    async def faces(file: Upload) -> dict[str, Any]:
        """The faces of a photograph: boxes in pixels of the upright picture, scores, the crop of
        each that the network would get, and the number of the face that is taken by itself.
        """
        return dict(await work(service.find_faces, file))

    @app.post("/identify", responses=openapi.IDENTIFY, dependencies=[_needs_gallery(service)])
    async def identify(
        file: Upload,
        k: Annotated[int, Form(ge=1, le=100)] = 5,
        threshold: Annotated[float | None, Form(allow_inf_nan=False)] = None,
        face: Face = None,
    ) -> dict[str, Any]:
        """The k most similar subjects of the gallery, and who of them it is: the best, if its score
        reaches the threshold (default: the server's).
        """
        return dict(await work(service.identify, file, k, threshold, face, joins=True))


def _add_embed(app: FastAPI, service: Service, work: Work) -> None:
    async def lines(files: Sequence[bytes]) -> AsyncIterator[bytes]:
        """One JSON object with a line end for each file, in their order."""
        ahead = deque[asyncio.Task[Any]]()
        left = deque(files)
        try:
            while left or ahead:
                while left and len(ahead) < EMBEDDED_AHEAD:
                    file = left.popleft()
                    ahead.append(asyncio.create_task(work(service.embed, file, joins=True)))
                    del file
                number = len(files) - len(left) - len(ahead)
                try:
                    answer = {"file": number, **await ahead[0]}
                except HTTPException as refused:
                    answer = {"file": number, "error": str(refused.detail)}
                ahead.popleft()
                yield json.dumps(answer).encode() + b"\n"
        finally:
            for task in ahead:
                task.cancel()

    @app.post("/embed", response_class=StreamingResponse, responses=openapi.EMBED)
    async def embed(
        files: Annotated[list[bytes], File(max_length=MAX_EMBEDDED)],
    ) -> StreamingResponse:
        """The embeddings of from 1 to 256 files, raw: the norm may carry quality. The answer is a
        line of JSON for each file, in the order in which they were sent and as soon as it is ready:
        `file` is its number from 0, with `embedding` and `norm`, or with `error` where it cannot be
        read.
        """
        return StreamingResponse(lines(files), media_type=LINES)


def _add_diarisation(app: FastAPI, service: Service, work: Work) -> None:
    @app.post("/diarise")
    async def diarise(
        file: Upload,
        min_speakers: Number = None,
        max_speakers: Number = None,
        threshold: Annotated[float | None, Form(allow_inf_nan=False)] = None,
    ) -> dict[str, Any]:
        """Who speaks when in a recording of up to 15 minutes: segments, none of which overlap, with
        start and end in seconds, speaker and score. With a gallery, speakers get the names of those
        in it whose score reaches the threshold (default: the server's). Equal numbers as the least
        and the most say how many speakers there are.
        """
        try:
            how = Clustering(least_speakers=min_speakers or 1, most_speakers=max_speakers)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        return dict(await work(service.diarise, file, how, threshold))


def _add_gallery(app: FastAPI, service: Service, work: Work) -> None:
    gallery = _needs_gallery(service)
    bearer = HTTPBearer(
        auto_error=False, description="The token that the server printed at its start."
    )
    # The guard asks for the token; here it is declared for /docs and /openapi.json.
    writes = [gallery, Depends(bearer)]

    @app.get("/gallery", responses=openapi.GALLERY, dependencies=[gallery])
    async def listed(offset: int = 0, limit: int = 100) -> dict[str, Any]:
        """Who is enrolled, with how many enrolments and the norm of the template."""
        entries = await work(service.people.entries)
        part = entries[max(0, offset) : max(0, offset) + min(max(0, limit), 1000)]
        return {"subjects": len(entries), "entries": [entry._asdict() for entry in part]}

    @app.post("/enrol", responses=openapi.ENROL, dependencies=writes, status_code=201)
    async def enrol(
        subject: Annotated[str, Form(max_length=256)], files: Uploads, faces: Faces = None
    ) -> dict[str, Any]:
        """Enrol a subject, or add to its enrolments, from 1 to 10 files; all of them or none. Of
        photographs the faces may be chosen, by one number of /faces for each file.
        """
        task = partial(service.enrol, subject, files, replaces=False, faces=faces or ())
        return dict(await work(task, joins=True))

    @app.get("/gallery/{subject:path}", responses=openapi.ENROLMENTS, dependencies=[gallery])
    async def enrolments(subject: Annotated[str, InPath(max_length=256)]) -> dict[str, Any]:
        """The enrolments of a subject: the norm of each, and the day and what is kept of it, where
        the server keeps media.
        """
        return dict(await work(service.enrolments, subject))

    @app.get("/media/{number}/{subject:path}", dependencies=[gallery], response_class=Response)
    async def medium(
        number: Annotated[int, InPath(ge=0)], subject: Annotated[str, InPath(max_length=256)]
    ) -> Response:
        """The small picture or sound that is kept of an enrolment, where the server keeps media."""
        content, kind = await work(service.medium, subject, number)
        return Response(content, media_type=kind)

    @app.put("/gallery/{subject:path}", responses=openapi.PUT, dependencies=writes)
    async def put(
        subject: Annotated[str, InPath(max_length=256)], files: Uploads, faces: Faces = None
    ) -> dict[str, Any]:
        """Replace all enrolments of a subject."""
        task = partial(service.enrol, subject, files, replaces=True, faces=faces or ())
        return dict(await work(task, joins=True))

    @app.delete("/gallery/{subject:path}", responses=openapi.DELETE, dependencies=writes)
    async def delete(subject: Annotated[str, InPath(max_length=256)]) -> dict[str, Any]:
        """Erase a subject, with what is kept of it."""
        return dict(await work(service.remove, subject))


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        reasons = "; ".join(
            f"{'.'.join(str(part) for part in wrong['loc'][1:])}: {wrong['msg']}"
            for wrong in error.errors()[:5]
        )
        return JSONResponse({"error": f"the request is not as /docs says: {reasons}"}, 422)

    @app.exception_handler(ConnectionError)
    async def unanswered(_: Request, error: ConnectionError) -> JSONResponse:
        _log.error("the gallery does not answer: %s", error)
        reason = "the gallery's database does not answer; try again"
        return JSONResponse({"error": reason}, 503, {"Retry-After": "5"})

    @app.exception_handler(OSError)
    @app.exception_handler(RuntimeError)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        # A store may quote subjects, which no log names.
        reason = re.sub("'.*'", "'...'", str(error), flags=re.DOTALL)[:300]
        _log.error("a request ended in %s: %s", type(error).__name__, reason)
        return JSONResponse(
            {
                "error": "the server could not do this, for a reason such as a full disk; whoever "
                "runs it finds the reason in its log"
            },
            500,
        )


def serve(
    comparer: Comparer,
    *,
    gallery: str | Path | None = None,
    address: Address = _ON_LOOPBACK,
    token: str = "",
    limits: Limits | None = None,
    extras: Extras = NO_EXTRAS,
    worker: Worker | None = None,
    say: Callable[[str], object] = print,
) -> None:
    """Serve until Ctrl-C. The address is printed when the server can be asked.

    Args:
        comparer: what embeds the uploads, and what decides.
        gallery: its folder or address, as for `open_gallery`; None for no gallery.
        address: where the server listens.
        token: of 16 characters or more; where it is empty one is made and printed.
        limits: what one client can cost the others.
        extras: what the page offers beside.
        worker: which of several processes this is, see `processes.start`; None for the only one.
        say: prints a line.

    Raises:
        LikenessError: media are to be kept without a gallery, the gallery is another model's, the
            token is too short, a host is a pattern, or several processes cannot share the gallery.
        OSError: the address cannot be bound.
    """
    import uvicorn

    limits, model = limits or Limits(), comparer.model
    model.embedder.share_cores(limits.threads)
    made = not token
    token = token or (worker.token if worker else secrets.token_urlsafe(24))
    if len(token) < MIN_TOKEN:
        raise LikenessError(
            f"the token has {len(token)} characters; at least {MIN_TOKEN} are needed, so that it "
            "cannot be guessed"
        )
    if extras.keeps_media and gallery is None:
        raise LikenessError(
            "--keep-media keeps pictures and sounds beside a gallery; name one with --gallery DIR"
        )
    with ExitStack() as opened:
        store = None
        if gallery is not None:
            store = opened.enter_context(closing(open_gallery(gallery, model.meta)))
        if worker is not None and store is not None and not store.shared:
            raise LikenessError(
                f"the gallery {masked(str(gallery))} cannot be shared by several processes; keep "
                "it in PostgreSQL (--gallery postgresql://USER@HOST/DATABASE), or start the server "
                "with --workers 1"
            )
        service = Service(
            model,
            store,
            threshold=comparer.threshold,
            calibration=comparer.calibration,
            source=comparer.source,
            limits=limits,
            extras=extras,
        )
        # Nobody can connect before, and so nobody waits for a server that cannot be started.
        listener = opened.enter_context(worker.listen() if worker else address.listen())
        bound, port = listener.getsockname()[:2]
        local = bound in ("127.0.0.1", "::1")
        app = make_app(service, token=token, hosts=address.all_names, local=local)
        url = address.url(port) + (f"#token={token}" if made else "")
        say(f"Likeness serves this {model.modality} model at {url}")
        if store is not None:
            _say_media(store, extras.keeps_media, say)
        if comparer.source:
            say(f"Threshold {comparer.threshold:.4g} at {comparer.source}")
        elif comparer.threshold is None and comparer.calibration is None:
            say(f"No verdict is given: {NO_DECISION}")
        if made:
            say(f"Token for enrolling and removing: {token}")
        if not local:
            say(
                "Other machines can connect: everything but the page needs the token, and nothing "
                "is encrypted; put a proxy with TLS in front."
            )
        if worker is not None:
            worker.report()
        with _closing_at_sigterm():
            uvicorn.Server(_server_settings(app, limits)).run(sockets=[listener])


@contextmanager
def _closing_at_sigterm() -> Iterator[None]:
    """Within the block, SIGTERM ends the process as an exception does: galleries are closed.

    uvicorn sends itself the signal once more when it has ended.
    """
    if threading.current_thread() is not threading.main_thread():  # which gets all signals
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say_media(store: Gallery, keeps: bool, say: Callable[[str], object]) -> None:
    """What is kept beside the gallery. What is left of subjects who are gone is erased first."""
    if store.folder is None:
        return
    erased = media.sweep(store.folder, [entry.subject for entry in store.entries()])
    if erased:
        say(f"Erased what was kept of {erased} subjects who are not enrolled any more.")
    if keeps:
        say(
            f"A small picture or sound of each enrolment is kept in {store.folder / media.FOLDER} "
            "until its subject is removed."
        )


def _server_settings(app: Any, limits: Limits) -> Any:
    """The uvicorn.Config of an application, with the limits of its connections."""
    import uvicorn

    from likeness.service.connections import protocol

    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # or anybody could choose the address that the rate limit goes by
        lifespan="off",
        ws="none",
        http=protocol(
            connections=limits.connections,
            head_seconds=limits.head_seconds,
            stall_seconds=limits.body_seconds,
        ),
        timeout_keep_alive=10,
        timeout_graceful_shutdown=5,
    )
