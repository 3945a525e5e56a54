"""Which requests are collected: the endpoint of a method and a path. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from nightshift.batcher.endpoint import Endpoint, ErrorBody, kserve_error, openai_error
from nightshift.batcher.kserve import Infer, Predict
from nightshift.batcher.openai import list_endpoints

NAMES: Final = ("embeddings", "completions", "classify", "pooling", "score", "predict", "infer")
_PREDICT: Final = re.compile(r"/v1/models/[^/:]+(?:/versions/[^/:]+)?:predict")
_INFER: Final = re.compile(r"/v2/models/[^/]+(?:/versions/[^/]+)?/infer")
_KSERVE: Final = re.compile(r"/v1/models/.+|/v2/.*")


class Routes:
    """The endpoints of these names. estimate: see `nightshift.batcher.endpoint.Endpoint`."""

    def __init__(self, names: Collection[str] = NAMES, *, estimate: bool = False) -> None:
        self._exact = {path: each for path, each in list_endpoints(estimate=estimate).items() if each.name in names}
        patterns: list[tuple[re.Pattern[str], Endpoint]] = [(_PREDICT, Predict()), (_INFER, Infer())]
        self._patterns = [(pattern, each) for pattern, each in patterns if each.name in names]

    def find(self, method: str, path: str) -> Endpoint | None:
        """path: as it was sent, without the query. None: the request is passed through."""
        if method != "POST":
            return None
        if (exact := self._exact.get(path)) is not None:
            return exact
        return next((each for pattern, each in self._patterns if pattern.fullmatch(path)), None)


def model_of(target: str) -> str | None:
    """The path of the metadata of a V2 model that is asked to infer; None for other paths and their queries."""
    path = target.partition("?")[0]
    return path.removesuffix("/infer") if _INFER.fullmatch(path) else None


def error_body(path: str) -> ErrorBody:
    """In which form the callers of a path expect an error."""
    return kserve_error if _KSERVE.fullmatch(path) else openai_error
