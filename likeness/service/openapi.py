"""Examples of answers and of errors, which /docs and /openapi.json show."""

from __future__ import annotations

from typing import Any

_ERRORS = {
    401: "this needs the token that the server printed at its start: send Authorization: Bearer "
    "TOKEN",
    404: "there is no subject 'ann' in the gallery",
    413: "at most 16 MB are read in one request; send a shorter recording or a smaller photo",
    422: "with this speaker model, 1 of 2 files cannot be read: the second file: unreadable",
    429: "more than 200 requests per second; wait a moment",
    503: "the server is busy; try again in a moment",
}


def _answers(
    example: Any, *errors: int, status: int = 200, kind: str = "application/json"
) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: an example of its answer, and of errors that it may give."""
    named: dict[int | str, dict[str, Any]] = {
        status: {"description": "The answer.", "content": {kind: {"example": example}}}
    }
    for error in sorted({*errors, 429}):
        content = {"application/json": {"example": {"error": _ERRORS[error]}}}
        named[error] = {"description": "One sentence.", "content": content}
    return named


_UPLOAD = (413, 422, 503)
HEALTH = _answers(
    {
        "status": "ok",
        "modality": "speaker",
        "model": "3f0c...",
        "similarity": "cosine",
        "norm_is_quality": False,
        "threshold": 0.41,
        "source": "FAR 1 % on speechocean762",
        "calibrated": True,
        "gallery": 2,
        "max_bytes": 16777216,
        "token_for_reading": False,
        "takes": {
            "kind": "recordings",
            "height": None,
            "width": None,
            "formats": ["WAV", "FLAC"],
            "text": "Recordings of 0.1 to 60 s, at any sampling rate and with any number of "
            "channels.",
        },
        "keeps_media": False,
        "about": "",
        "examples": 0,
    }
)
VERIFY = _answers(
    {
        "score": 0.71,
        "similarity": "cosine",
        "norms": [9.8, 11.2],
        "llr": 4.2,
        "prior": 0.5,
        "probability": 0.985,
        "threshold": 0.41,
        "same": True,
        "source": "FAR 1 % on speechocean762",
        "modality": "speaker",
        "model": "3f0c...",
    },
    *_UPLOAD,
)
FACES = _answers(
    {
        "width": 640,
        "height": 480,
        "detector": True,
        "faces": [
            {
                "number": 0,
                "box": [212.0, 96.5, 330.1, 251.7],
                "score": 0.93,
                "crop": "data:image/png;base64,...",
                "reason": "",
            }
        ],
        "found": 1,
        "chosen": 0,
        "crop": None,
    },
    *_UPLOAD,
)
EMBED = _answers(
    '{"file": 0, "embedding": [0.12, -0.03, 0.4], "norm": 0.42}\n'
    '{"file": 1, "error": "with this speaker model, 1 of 1 files cannot be read: the file: ..."}\n',
    *_UPLOAD,
    kind="application/x-ndjson",
)
IDENTIFY = _answers(
    {
        "identified": "ann",
        "decided": True,
        "threshold": 0.41,
        "source": "",
        "similarity": "cosine",
        "norm": 9.8,
        "matches": [
            {"subject": "ann", "score": 0.71, "norm": 10.4, "accepted": True},
            {"subject": "bob", "score": 0.12, "norm": 9.1, "accepted": False},
        ],
    },
    404,
    *_UPLOAD,
)
GALLERY = _answers(
    {"subjects": 1, "entries": [{"subject": "ann", "enrolments": 2, "norm": 9.8}]}, 404
)
_ENROLLED = {"subject": "ann", "added": 2, "norms": [9.8, 11.2], "subjects": 1, "kept": 0}
ENROL = _answers(_ENROLLED, 401, 404, *_UPLOAD, status=201)
PUT = _answers(_ENROLLED, 401, 404, *_UPLOAD)
ENROLMENTS = _answers(
    {
        "subject": "ann",
        "enrolments": [{"number": 0, "norm": 9.8, "date": "2026-11-23", "medium": "sound"}],
    },
    404,
)
DELETE = _answers({"subject": "ann", "subjects": 0}, 401, 404)
