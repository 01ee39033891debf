"""The routes of `likeness serve`: verify, identify and manage a gallery over REST, and one page.

Answers are JSON; errors are {"error": one sentence}. Uploads are held in memory, decoded with the
bounds of their modality, and gone with the answer; with --keep-media a small picture or sound of
each enrolment stays beside the gallery until the subject is erased. Meant for one machine or a
trusted network: put a proxy in front, and name it with --allow-host. One token serves all who may
write.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
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

from eval.formats.provenance import likeness_version
from likeness.service import pages
from likeness.service.guard import Guard, Limits, Metrics
from likeness.service.pages import responses
from likeness.service.work import Service, takes
from toolkit.gallery.gallery import NotEnrolled

_PLACE = re.compile(r"\b(postgres(ql)?|faiss):[^\s,;()]*[^\s,;():.]")
_UPLOAD = (413, 422, 503)  # errors of all routes that take files
MAX_FILES = 10  # of one enrolment
MAX_EMBEDDED = 256  # files of one request for embeddings
EMBEDDED_AHEAD = 16  # of them that wait or are worked on at once
_log = logging.getLogger("likeness.serve")
Upload = Annotated[bytes, File()]
Uploads = Annotated[list[bytes], File(max_length=MAX_FILES)]
Face = Annotated[int | None, Form(ge=0, le=9999)]
Faces = Annotated[list[Annotated[int, Form(ge=0, le=9999)]] | None, Form(max_length=MAX_FILES)]
Subject = Annotated[str, InPath(max_length=256)]
Work = Callable[..., Coroutine[Any, Any, Any]]  # work(task, ...) -> what task(...) returns


def make_app(
    service: Service, *, token: str, hosts: Sequence[str] = (), local: bool = True
) -> Guard:
    """The ASGI application, which closes the gallery when its server ends.

    Args:
        service: What requests ask for; without a gallery, what needs one is answered with 404.
        token: What enrolling, replacing and removing need.
        hosts: Names by which the server may be addressed, beside loopback's.
        local: Whether only this machine can connect.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        if service.gallery is not None:
            service.gallery.close()

    app = FastAPI(
        title="Likeness",
        version=likeness_version(),
        docs_url=None,
        redoc_url=None,
        description=str(__doc__).partition("\n\n")[2],
        lifespan=lifespan,
    )
    # Otherwise Starlette puts uploads of over 1 MiB into files. This holds for the whole process.
    MultiPartParser.spool_max_size = service.limits.max_bytes + 1
    metrics, work = Metrics(), _in_threads(service.limits)
    _add_pages(app, service)
    _add_state(app, service, metrics, local)
    _add_questions(app, service, work)
    _add_embed(app, service, work)
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
    """Runs tasks in worker threads, and gives their errors a status."""
    threads = ThreadPoolExecutor(limits.threads, thread_name_prefix="likeness")

    async def work(task: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(threads, partial(task, *arguments, **named))
        try:
            async with asyncio.timeout(limits.work_seconds) as time:
                return await running
        except TimeoutError:
            if not time.expired():  # it is the task's own, of a database for instance
                raise
            raise HTTPException(
                503,
                f"this took longer than {limits.work_seconds:g} s; look at the gallery before you "
                "enrol or remove again",
                {"Retry-After": "5"},
            ) from None
        except (KeyError, NotEnrolled) as error:
            raise HTTPException(404, str(error.args[0])) from None
        except ValueError as error:
            # A client need not know where the gallery lies.
            raise HTTPException(422, _PLACE.sub("the gallery", str(error))) from None

    return work


def _add_pages(app: FastAPI, service: Service) -> None:
    examples = service.extras.examples

    @app.get("/", include_in_schema=False)
    async def home() -> HTMLResponse:
        return HTMLResponse(pages.home())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(pages.docs(app.openapi()))

    @app.get("/examples")
    async def listed_examples() -> dict[str, Any]:
        """The files to try that the server was started with, by their numbers."""
        return {
            "examples": [
                {"name": example.name, "bytes": len(example.content)} for example in examples
            ]
        }

    @app.get("/examples/{number}", response_class=Response)
    async def example(number: Annotated[int, InPath(ge=0)]) -> Response:
        """One of the files to try."""
        if number >= len(examples):
            raise HTTPException(404, f"there are {len(examples)} examples, numbered from 0")
        return Response(examples[number].content, media_type=examples[number].media_type)


def _add_state(app: FastAPI, service: Service, metrics: Metrics, local: bool) -> None:
    async def num_subjects() -> int | None:
        """How many are enrolled. A database may take its time, in which others are answered."""
        return None if service.gallery is None else await asyncio.to_thread(len, service.gallery)

    @app.get("/health", responses=responses("health"))
    async def health() -> dict[str, Any]:
        """What is served: the model and its modality, how it decides, how many are enrolled."""
        model = service.model
        return {
            "status": "ok",
            "modality": model.modality,
            "model": model.digest,
            "similarity": model.similarity,
            "norm_is_quality": model.norm_is_quality,
            "threshold": service.threshold,
            "source": service.source,
            "calibrated": service.calibration is not None,
            "gallery": await num_subjects(),
            "max_bytes": service.limits.max_bytes,
            "token_for_reading": not local,
            "takes": takes(model, service.limits),
            "keeps_media": service.extras.keeps_media,
            "about": service.extras.about,
            "examples": len(service.extras.examples),
        }

    @app.get("/thresholds")
    async def thresholds() -> dict[str, Any]:
        """What each threshold means: the stored error rates of the model, or the reason why there
        are none. A rate that fewer than ten trials stand behind is given as ten trials' share.
        """
        return pages.slider(service.extras.thresholds, service.extras.no_thresholds)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> PlainTextResponse:
        """Counts and times in Prometheus' text format."""
        text, name = metrics.text(), "likeness_gallery_subjects"
        try:
            subjects = await num_subjects()
        except ConnectionError:  # a database that is away takes no other number away
            subjects = None
        if subjects is not None:
            text += f"# HELP {name} Who is enrolled.\n# TYPE {name} gauge\n{name} {subjects}\n"
        return PlainTextResponse(text, media_type=CONTENT_TYPE_LATEST)


def _needs_gallery(service: Service) -> Any:
    """A dependency of what needs a gallery: 404 without one."""

    def gallery() -> None:
        if service.gallery is None:
            raise HTTPException(404, "this server has no gallery; start it with --gallery DIR")

    return Depends(gallery)


def _add_questions(app: FastAPI, service: Service, work: Work) -> None:
    @app.post("/verify", responses=responses("verify", *_UPLOAD))
    async def verify(
        first: Upload, second: Upload, first_face: Face = None, second_face: Face = None
    ) -> dict[str, Any]:
        """Are two files of one subject? Score, probability if there is a calibration, decision, and
        the norms: a measure of quality where /health says so. Of photographs the faces may be
        chosen, by the numbers that /faces gives.
        """
        return dict(await work(service.verify, first, second, first_face, second_face))

    @app.post("/faces", responses=responses("faces", *_UPLOAD))
    async def faces(file: Upload) -> dict[str, Any]:
        """The faces of a photograph: boxes in pixels of the upright picture, scores, the crop of
        each that the network would get, and the number of the face that is taken by itself.
        """
        return dict(await work(service.find_faces, file))

    @app.post(
        "/identify",
        responses=responses("identify", 404, *_UPLOAD),
        dependencies=[_needs_gallery(service)],
    )
    async def identify(
        file: Upload,
        k: Annotated[int, Form(ge=1, le=100)] = 5,
        threshold: Annotated[float | None, Form(allow_inf_nan=False)] = None,
        face: Face = None,
    ) -> dict[str, Any]:
        """The k most similar subjects of the gallery, and who of them it is: the best, if its score
        reaches the threshold (default: the server's).
        """
        return dict(await work(service.identify, file, k, threshold, face))


def _add_embed(app: FastAPI, service: Service, work: Work) -> None:
    async def lines(files: Sequence[bytes]) -> AsyncIterator[bytes]:
        """One JSON object with a line end for each file, in their order."""
        ahead = deque[asyncio.Task[Any]]()
        left = deque(files)
        try:
            for number in range(len(files)):
                while left and len(ahead) < EMBEDDED_AHEAD:
                    ahead.append(asyncio.create_task(work(service.embed, left.popleft())))
                try:
                    answer = {"file": number, **await ahead[0]}
                except HTTPException as refused:
                    answer = {"file": number, "error": str(refused.detail)}
                ahead.popleft()
                yield json.dumps(answer).encode() + b"\n"
        finally:
            for task in ahead:
                task.cancel()

    @app.post("/embed", response_class=StreamingResponse, responses=responses("embed", *_UPLOAD))
    async def embed(
        files: Annotated[list[bytes], File(max_length=MAX_EMBEDDED)],
    ) -> StreamingResponse:
        """The embeddings of from 1 to 256 files, raw: the norm may carry quality. The answer is a
        line of JSON for each file, in the order in which they were sent and as soon as it is ready:
        `file` is its number from 0, with `embedding` and `norm`, or with `error` where it cannot be
        read.
        """
        return StreamingResponse(lines(files), media_type="application/x-ndjson")


def _add_gallery(app: FastAPI, service: Service, work: Work) -> None:
    gallery = _needs_gallery(service)
    bearer = HTTPBearer(
        auto_error=False, description="The token that the server printed at its start."
    )
    # The guard asks for the token; here it is declared for /docs and /openapi.json.
    writes = [gallery, Depends(bearer)]

    @app.get("/gallery", responses=responses("gallery", 404), dependencies=[gallery])
    async def listed(offset: int = 0, limit: int = 100) -> dict[str, Any]:
        """Who is enrolled, with how many enrolments and the norm of the template."""
        return dict(await work(service.entries, offset, limit))

    @app.post(
        "/enrol",
        responses=responses("enrol", 401, 404, *_UPLOAD, status=201),
        dependencies=writes,
        status_code=201,
    )
    async def enrol(
        subject: Annotated[str, Form(max_length=256)], files: Uploads, faces: Faces = None
    ) -> dict[str, Any]:
        """Enrol a subject, or add to its enrolments, from 1 to 10 files; all of them or none. Of
        photographs the faces may be chosen, by one number of /faces for each file.
        """
        return dict(await work(service.enrol, subject, files, replaces=False, faces=faces or ()))

    @app.get(
        "/gallery/{subject:path}", responses=responses("enrolments", 404), dependencies=[gallery]
    )
    async def enrolments(subject: Subject) -> dict[str, Any]:
        """The enrolments of a subject: the norm of each, and the day and what is kept of it, where
        the server keeps media.
        """
        return dict(await work(service.enrolments, subject))

    @app.get("/media/{number}/{subject:path}", dependencies=[gallery], response_class=Response)
    async def medium(number: Annotated[int, InPath(ge=0)], subject: Subject) -> Response:
        """The small picture or sound that is kept of an enrolment, where the server keeps media."""
        content, kind = await work(service.medium, subject, number)
        return Response(content, media_type=kind)

    @app.put(
        "/gallery/{subject:path}",
        responses=responses("enrol", 401, 404, *_UPLOAD),
        dependencies=writes,
    )
    async def put(subject: Subject, files: Uploads, faces: Faces = None) -> dict[str, Any]:
        """Replace all enrolments of a subject."""
        return dict(await work(service.enrol, subject, files, replaces=True, faces=faces or ()))

    @app.delete(
        "/gallery/{subject:path}", responses=responses("removed", 401, 404), dependencies=writes
    )
    async def delete(subject: Subject) -> dict[str, Any]:
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
