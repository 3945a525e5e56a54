"""Relevance of a row's documents to its query: ``POST /rerank``, one number per document, in the order of the documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import orjson
from pydantic import Field

from nightshift.fields import section
from nightshift.tasks._request import OVERLONG, Overlong, TaskRequest, truncation
from nightshift.tasks.base import Answer, Answers, BadInput, Text, finite, numbered, plain_text, union, usage

if TYPE_CHECKING:
    import pyarrow as pa

    from nightshift.tasks.base import Job, RowName


class Request(TaskRequest):
    """What the model is asked for a row of a rerank job."""

    TEMPLATES: ClassVar = ("query",)
    COLUMNS: ClassVar = {"documents": ("ARRAY",)}
    PAIRS: ClassVar = True

    query: section.Text = Field(
        description="Jinja2 template: the query that the documents are compared with.", examples=["{{ question }}"]
    )
    documents: section.InputColumn = Field(
        description="The array column that holds the row's documents.", examples=["candidates"]
    )
    overlong: Overlong = Field(default="dead_letter", description=OVERLONG, examples=["truncate"])


class Kind:
    """`nightshift.tasks.base.TaskKind` for rerankers. A payload is a query and its documents."""

    server_args = ("--runner=pooling",)
    rows_per_request = 1

    def __init__(self, job: Job, request: Request) -> None:
        self._query, self._documents = Text(request.query, job.rendering), request.documents
        self._rendering = job.rendering
        self.columns = union(self._query.columns, (request.documents,))
        self._options = {"model": job.model.name, **truncation(request)}

    @property
    def prediction_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.list_(pa.float32())

    def render(self, row: Mapping[str, Any], name: RowName) -> tuple[str, list[str]]:
        documents = row[self._documents]
        if not isinstance(documents, list):
            raise BadInput("the documents are NULL" if documents is None else f"{self._documents} is not an array")
        if not documents:
            raise BadInput("there are no documents")
        return self._query.of(row), [plain_text(document, self._rendering, self._documents) for document in documents]

    def request(self, payloads: Sequence[Any], retry: int) -> tuple[str, bytes]:
        ((query, documents),) = payloads
        return "/rerank", orjson.dumps({**self._options, "query": query, "documents": documents})

    def answers(self, reply: Any, payloads: Sequence[Any]) -> Answers:
        ((_, documents),) = payloads
        items = numbered(reply, "results", len(documents))
        return Answers([Answer([finite(item.get("relevance_score")) for item in items])], *usage(reply))
