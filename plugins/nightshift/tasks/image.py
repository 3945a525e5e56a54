"""Images: a chat request with one image and a question about it. The image comes from a column: its bytes, or its gs:// URI."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, Field

from nightshift.fields import section
from nightshift.fields.mistakes import mistake
from nightshift.tasks._sampling import MessageRequest, Prompt, Sampling
from nightshift.tasks.base import BadInput, Fetch, Text, union
from nightshift.tasks.chat import PATH, SYSTEM, system_message

if TYPE_CHECKING:
    from nightshift.tasks.base import Job, RowName

BYTES_MAX: Final = 20 * 1024 * 1024
_URI: Final = re.compile(r"gs://[^/\s]+/.+", re.DOTALL)


def _some(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise mistake("The list of buckets is empty", "Write the names of some, or leave it out")
    return value


class Request(MessageRequest):
    """What the model is asked about a row's image."""

    TEMPLATES: ClassVar = ("system", "user")
    COLUMNS: ClassVar = {"image": ("BYTES", "STRING")}
    LEADING: ClassVar = ("system",)
    """The image stands before the user's text."""

    image: section.InputColumn = Field(
        description="The column of the image: BYTES (PNG, JPEG, WebP or GIF), or the gs:// URI of such an object.",
        examples=["photo"],
    )
    user: section.Text = Field(
        description="Jinja2 template: the question about the image.", examples=["What does this photo show?"]
    )
    buckets: Annotated[section.Listed[section.BucketName], AfterValidator(_some)] | None = Field(
        default=None,
        description="The buckets that the rows may name; by default, all that the worker can read.",
        examples=[["shop-photos"]],
    )
    system: section.Text | None = Field(default=None, description=SYSTEM, examples=["You describe photos in one sentence."])


@dataclass(frozen=True, slots=True)
class Picture(Prompt):
    """A payload; content holds the messages without the image. Exactly one of image and uri is None."""

    image: bytes | None
    uri: str | None


class Kind(Sampling):
    """`nightshift.tasks.base.TaskKind` for models that see; also `nightshift.tasks.base.Fetching`."""

    server_args = ("--runner=generate", '--limit-mm-per-prompt={"image": 1}')

    def __init__(self, job: Job, request: Request) -> None:
        super().__init__(job, request)
        self._system = Text(request.system, job.rendering, blank=True) if request.system is not None else None
        self._user, self._column = Text(request.user, job.rendering), request.image
        self._buckets = frozenset(request.buckets) if request.buckets is not None else None
        self.columns = union(self._user.columns, self._system.columns if self._system else (), (request.image,))

    def render(self, row: Mapping[str, Any], name: RowName) -> Picture:
        value = row[self._column]
        content = (system_message(self._system, row, ()), self._user.of(row))
        if isinstance(value, bytes):
            return Picture(name, content, _checked(value), None)
        if isinstance(value, str) and _URI.fullmatch(value):
            return Picture(name, content, None, value)
        raise BadInput("the image is NULL" if value is None else f"the image is neither bytes nor a gs:// URI: {value!r:.200}")

    def fetches(self, payload: Picture) -> Fetch | None:
        return Fetch(payload.uri, BYTES_MAX, self._buckets) if payload.uri is not None else None

    def with_bytes(self, payload: Picture, body: bytes) -> Picture:
        return replace(payload, image=_checked(body), uri=None)

    def request(self, payloads: Sequence[Any], retry: int) -> tuple[str, bytes]:
        (picture,) = payloads
        system, text = picture.content
        url = f"data:image/{_form(picture.image)};base64,{base64.b64encode(picture.image).decode()}"
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
        return PATH, self.body(picture, retry, {"messages": [*system, {"role": "user", "content": content}]})


def _checked(body: bytes) -> bytes:
    if len(body) > BYTES_MAX:
        raise BadInput(f"the image has {len(body):,} bytes; at most {BYTES_MAX:,} are sent")
    if _form(body) is None:
        raise BadInput(f"not an image: {len(body):,} bytes that begin with {body[:8]!r}; PNG, JPEG, WebP and GIF are supported")
    return body


def _form(body: bytes) -> str | None:
    """The format of an image, from its first bytes; the engine judges the rest."""
    if body.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if body.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if body.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    return "webp" if body[:4] == b"RIFF" and body[8:12] == b"WEBP" else None
