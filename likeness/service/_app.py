"""The routes of `likeness serve`: verify, identify and manage a gallery over REST, and one page.

Answers are JSON; errors are {"error": one sentence}. Uploads are held in memory, decoded with the
bounds of their modality, and gone with the answer; with --keep-media a small picture or sound of
each enrolment stays beside the gallery until the subject is erased. Meant for one machine or a
trusted network: put a proxy in front, and name it with --allow-host. One token serves all who may
write.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from anyio.to_thread import current_default_thread_limiter
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartParser
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from likeness.eval.errors import likeness_version
from likeness.service import _pages
from likeness.service._guard import MAX_BYTES, MAX_WAITING, Guard, changes_gallery
from likeness.service._work import Service
from likeness.toolkit.gallery.gallery import NotEnrolled

_PLACE = re.compile(r"\b(postgres(ql)?|faiss):[^\s,;()]*[^\s,;():.]")
_log = logging.getLogger("likeness.serve")


def make_app(
    service: Service, *, token: str, hosts: Sequence[str], origins: Sequence[str], local: bool
) -> ASGIApp:
    """The ASGI application, which closes the gallery when its server ends.

    Args:
        service: What requests ask for.
        token: What enrolling and removing need.
        hosts: Names by which the server may be addressed, beside loopback's.
        origins: The origins of other pages that may ask, as browsers write them.
        local: Whether only this machine can connect.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # Uploads that wait for their turn hold up no other answer.
        current_default_thread_limiter().total_tokens += service.threads + MAX_WAITING
        yield
        service.close()

    app = FastAPI(
        title="Likeness",
        version=likeness_version(),
        docs_url=None,
        redoc_url=None,
        description=str(__doc__).partition("\n\n")[2],
        lifespan=lifespan,
    )
    # Otherwise Starlette puts uploads of over 1 MiB into files. This holds for the whole process.
    MultiPartParser.spool_max_size = MAX_BYTES + 1
    _add_pages(app, service, local)
    _add_routes(app, service)
    _add_errors(app)
    rules: Any = {"token": token, "hosts": hosts, "origins": origins, "local": local}
    guard = Guard(app, **rules, threads=service.threads)
    methods, headers = ("GET", "POST", "DELETE"), ("Authorization",)
    # Before the guard, so that pages of these origins can read why it refuses.
    return CORSMiddleware(guard, origins, methods, headers, expose_headers=("Retry-After",))


def _add_pages(app: FastAPI, service: Service, local: bool) -> None:
    @app.get("/", include_in_schema=False)
    def home() -> HTMLResponse:
        return HTMLResponse(_pages.page("page.html"))

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(_pages.page("docs.html", **app.openapi()))

    @app.get("/health", description=service.health.__doc__)
    def health() -> dict[str, Any]:
        return {**service.health(), "token_for_reading": not local}


def _add_routes(app: FastAPI, service: Service) -> None:
    # The guard asks for the token; here it is declared for /docs and /openapi.json.
    token = HTTPBearer(
        auto_error=False, description="The token that the server printed at its start."
    )
    for method, path, task, kind in (
        ("GET", "/thresholds", service.thresholds, JSONResponse),
        ("GET", "/examples", service.examples, JSONResponse),
        ("GET", "/examples/{number}", service.example, Response),
        ("POST", "/verify", service.verify, JSONResponse),
        ("POST", "/faces", service.faces, JSONResponse),
        ("POST", "/identify", service.identify, JSONResponse),
        ("POST", "/embed", service.embed, Response),
        ("POST", "/enrol", service.enrol, JSONResponse),
        ("GET", "/gallery", service.gallery, JSONResponse),
        ("GET", "/gallery/{subject:path}", service.enrolments, JSONResponse),
        ("DELETE", "/gallery/{subject:path}", service.remove, JSONResponse),
        ("GET", "/media/{number}/{subject:path}", service.medium, Response),
    ):
        app.add_api_route(
            path,
            task,
            methods=[method],
            dependencies=[Depends(token)] if changes_gallery(method, path) else [],
            status_code=201 if path == "/enrol" else 200,
            response_class=kind,
        )


def _add_errors(app: FastAPI) -> None:
    def answer(status: int, reason: str, headers: Any = None) -> JSONResponse:
        return JSONResponse({"error": reason}, status, headers)

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        return answer(error.status_code, error.detail, error.headers)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        wrong = error.errors()[0]
        part = ".".join(map(str, wrong["loc"][1:]))
        return answer(422, f"the request is not as /docs says: {part}: {wrong['msg']}")

    @app.exception_handler(ValueError)
    @app.exception_handler(OSError)
    @app.exception_handler(RuntimeError)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, ValueError):
            # A client need not know where the gallery lies.
            reason = _PLACE.sub("the gallery", str(error))
            return answer(404 if isinstance(error, NotEnrolled) else 422, reason)
        # A store may quote subjects, which no log names.
        reason = re.sub("'.*'", "'...'", str(error), flags=re.DOTALL)[:300]
        _log.error("a request ended in %s: %s", type(error).__name__, reason)
        if isinstance(error, ConnectionError):
            reason = "the gallery's database does not answer; try again"
            return answer(503, reason, {"Retry-After": "5"})
        return answer(500, "the server could not do this, as on a full disk; its log says why")
