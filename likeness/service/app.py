"""`likeness serve`: verify, identify and manage a gallery over REST, and one page for it.

FastAPI and uvicorn (the extra "serve").

Answers are JSON; errors are {"error": one sentence}. Uploads are held in memory, decoded with the
bounds of their modality, and gone with the answer. Meant for one machine or a trusted network:
there is no TLS (put a proxy in front, and name it with --allow-host) and one token for all who may
write.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import os
import re
import secrets
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from html import escape
from pathlib import Path
from typing import Annotated, Any

import torch
from fastapi import Depends, FastAPI, File, Form, Request
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartParser

from eval.calibration import Calibration
from eval.formats.provenance import likeness_version
from likeness.service.guard import Guard, Limits, Metrics
from likeness.service.work import Service
from toolkit.gallery.open import open_gallery
from toolkit.models.checkpoint import Loaded

PAGE = Path(__file__).with_name("page.html")
MAX_FILES = 10  # of one enrolment
_log = logging.getLogger("likeness.serve")
Upload = Annotated[bytes, File()]


def make_app(service: Service, *, token: str, hosts: Sequence[str] = (), local: bool = True) -> Any:
    """The ASGI application. Who gives no gallery gets 404 from what needs one."""
    app = FastAPI(
        title="Likeness",
        version=likeness_version(),
        docs_url=None,
        redoc_url=None,
        description=str(__doc__).partition("\n\n")[2],
    )
    limits, metrics = service.limits, Metrics()
    workers = ThreadPoolExecutor(limits.workers, thread_name_prefix="likeness")
    page = PAGE.read_text(encoding="utf-8")
    MultiPartParser.spool_max_size = (
        limits.max_bytes + 1
    )  # of the whole process; else Starlette (0.46 or later) puts uploads of over 1 MiB into files
    writes = [
        Depends(
            HTTPBearer(
                auto_error=False, description="The token that the server printed at its start."
            )
        )
    ]

    async def work(task: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """In a worker thread; one that has not begun when time is up never begins.

        One that has cannot be stopped, and the answer says so.
        """
        waiting = [
            partial(task, *arguments, **named)
        ]  # whoever takes it out, the worker or who gives up, decides whether it is done

        def begin() -> Any:
            return waiting.pop()()

        try:
            return await asyncio.wait_for(
                asyncio.get_running_loop().run_in_executor(workers, begin), limits.work_seconds
            )
        except TimeoutError:
            try:
                # and with it the uploads, since the executor keeps what was cancelled until its
                # turn comes
                waiting.pop()
                said = "nothing was done: try again, or send less"
            except IndexError:
                said = (
                    "it goes on: if it enrols or removes, look at the gallery before you send it "
                    "again"
                )
            raise HTTPException(
                503,
                f"this took longer than {limits.work_seconds:g} s; {said}",
                {"Retry-After": "5"},
            ) from None
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        except KeyError as error:
            raise HTTPException(404, str(error.args[0])) from None

    def gallery() -> None:
        if service.gallery is None:
            raise HTTPException(404, "this server has no gallery; start it with --gallery DIR")

    @app.get("/", include_in_schema=False)
    async def home() -> HTMLResponse:
        return HTMLResponse(page)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi(), page))

    @app.get("/health")
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
            "calibrated": service.calibration is not None,
            "gallery": None if service.gallery is None else len(service.gallery),
            "max_bytes": limits.max_bytes,
            "token_for_reading": not local,
        }

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> PlainTextResponse:
        """Counts and times in Prometheus' text format."""
        enrolled = (
            {} if service.gallery is None else {"likeness_gallery_subjects": len(service.gallery)}
        )
        return PlainTextResponse(metrics.text(enrolled), media_type="text/plain; version=0.0.4")

    @app.post("/verify")
    async def verify(first: Upload, second: Upload) -> dict[str, Any]:
        """Are two files of one subject? Score, probability if there is a calibration, decision, and
        the norms: a measure of quality where /health says so.
        """
        return dict(await work(service.verify, first, second))

    @app.post("/identify", dependencies=[Depends(gallery)])
    async def identify(
        file: Upload,
        k: Annotated[int, Form(ge=1, le=100)] = 5,
        threshold: Annotated[float | None, Form(allow_inf_nan=False)] = None,
    ) -> dict[str, Any]:
        """The k most similar subjects of the gallery, and who of them it is: the best, if its score
        reaches the threshold (default: the server's).
        """
        return dict(await work(service.identify, file, k, threshold))

    @app.get("/gallery", dependencies=[Depends(gallery)])
    async def listed(offset: int = 0, limit: int = 100) -> dict[str, Any]:
        """Who is enrolled, with how many enrolments and the norm of the template."""
        entries = await work(service.gallery.entries)
        part = entries[max(0, offset) : max(0, offset) + min(max(0, limit), 1000)]
        return {"subjects": len(entries), "entries": [one._asdict() for one in part]}

    @app.post("/enrol", dependencies=[Depends(gallery), *writes], status_code=201)
    async def enrol(
        subject: Annotated[str, Form(max_length=256)],
        files: Annotated[list[bytes], File(max_length=MAX_FILES)],
    ) -> dict[str, Any]:
        """Enrol a subject, or add to its enrolments, from 1 to 10 files; all of them or none."""
        return dict(await work(service.enrol, subject, files, replaces=False))

    @app.put("/gallery/{subject:path}", dependencies=[Depends(gallery), *writes])
    async def put(
        subject: Annotated[str, InPath(max_length=256)],
        files: Annotated[list[bytes], File(max_length=MAX_FILES)],
    ) -> dict[str, Any]:
        """Replace all enrolments of a subject."""
        return dict(await work(service.enrol, subject, files, replaces=True))

    @app.delete("/gallery/{subject:path}", dependencies=[Depends(gallery), *writes])
    async def delete(subject: Annotated[str, InPath(max_length=256)]) -> dict[str, Any]:
        """Erase a subject."""
        return dict(await work(service.remove, subject))

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        said = "; ".join(
            f"{'.'.join(str(one) for one in wrong['loc'][1:])}: {wrong['msg']}"
            for wrong in error.errors()[:5]
        )
        return JSONResponse({"error": f"the request is not as /docs says: {said}"}, 422)

    @app.exception_handler(OSError)
    @app.exception_handler(RuntimeError)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        said = re.sub("'.*'", "'...'", str(error), flags=re.DOTALL)[
            :300
        ]  # a store may quote subjects, which no log names
        _log.error("a request ended in %s: %s", type(error).__name__, said)
        return JSONResponse(
            {
                "error": "the server could not do this, for a reason such as a full disk; whoever "
                "runs it finds the reason in its log"
            },
            500,
        )

    return Guard(
        app,
        token=token,
        hosts=hosts,
        local=local,
        limits=limits,
        metrics=metrics,
        policy=content_policy(page),
    )


def content_policy(page: str) -> str:
    """Nothing but what the page itself holds: its script and its style by their digests, and
    requests to this server.
    """

    def digests(tag: str) -> str:
        return " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
            for text in re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        )

    return (
        f"default-src 'none'; script-src {digests('script')}; style-src {digests('style')}; "
        "connect-src 'self'; img-src 'self' blob: data:; media-src blob:; "
        "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    )


def docs_page(schema: dict[str, Any], page: str) -> str:
    """The OpenAPI document as a plain page, without anything from the network."""
    style = re.findall("<style>(.*?)</style>", page, re.DOTALL)[0]
    rows = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            fields = [
                f"<li><code>{escape(one['name'])}</code> in the {one['in']}</li>"
                for one in operation.get("parameters", [])
            ]
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                held = schema["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
                for name, one in held["properties"].items():
                    what = (
                        "file"
                        if "contentMediaType" in one or one.get("format") == "binary"
                        else "files"
                        if one.get("type") == "array"
                        else "text"
                    )
                    needed = "" if name in held.get("required", []) else ", optional"
                    fields.append(
                        f"<li><code>{escape(name)}</code> {what}{needed} ({escape(kind)})</li>"
                    )
            token = " <small>needs the token</small>" if operation.get("security") else ""
            text = escape(operation.get("description", ""))
            rows.append(
                f"<section class=card><h2><code>{method.upper()} "
                f"{escape(path)}</code>{token}</h2><p>{text}</p><ul>{''.join(fields)}</ul>"
                "</section>"
            )
    example = "curl -F first=@a.wav -F second=@b.wav http://127.0.0.1:8000/verify"
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
        'content="width=device-width,initial-scale=1"><title>Likeness: REST</title>'
        '<link rel=icon href="data:,">'
        f"<style>{style}</style><main><header><h1>Likeness: REST</h1></header><p "
        f"class=soft>{escape(schema['info']['description'])}</p>"
        f'<p><code>{example}</code></p><p><a href="openapi.json">openapi.json</a> &middot; <a '
        f'href=".">the page</a></p>{"".join(rows)}</main></html>'
    )


def serve(
    model: Loaded,
    *,
    gallery: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str = "",
    threshold: float | None = None,
    calibration: Calibration | None = None,
    allow_hosts: Sequence[str] = (),
    limits: Limits | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve until Ctrl-C. token: made and printed where it is empty. port: 0 = a free one.

    Says the address when it can be asked.

    ValueError: a gallery of another model, a threshold that is no number; OSError: the address
    cannot be bound.
    """
    import uvicorn

    from likeness.service.connections import protocol

    limits = limits or Limits()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // limits.workers))
    made = not token
    token = token or secrets.token_urlsafe(24)
    if len(token) < 16:
        raise ValueError(
            f"the token has {len(token)} characters; at least 16 are needed, so that it cannot be "
            "guessed"
        )
    listener = socket.create_server(
        (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=256
    )
    local = listener.getsockname()[0] in ("127.0.0.1", "::1")
    store = None if gallery is None else open_gallery(gallery, model.meta)
    try:
        service = Service(model, store, threshold=threshold, calibration=calibration, limits=limits)
        named = [] if host in ("0.0.0.0", "::") else [host]
        app = make_app(service, token=token, hosts=[*named, *allow_hosts], local=local)
        shown = f"[{host}]" if ":" in host else host
        say(
            f"Likeness serves this {model.modality} model at "
            f"http://{shown}:{listener.getsockname()[1]}/{f'#token={token}' if made else ''}"
        )
        if made:
            say(f"Token for enrolling and removing: {token}")
        if not local:
            say(
                "Other machines can connect: everything but the page needs the token, and nothing "
                "is encrypted; put a proxy with TLS in front."
            )
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # or anybody could choose the address that the rate limit goes by
            lifespan="off",
            ws="none",
            http=protocol(connections=limits.connections, head_seconds=limits.head_seconds),
            timeout_keep_alive=10,
            timeout_graceful_shutdown=5,
        )
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        listener.close()
        if store is not None:
            store.close()
