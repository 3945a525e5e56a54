"""What engines say that they serve, and that it stays what they said first.

The model's name is that of the job, whatever weights are behind it. So an engine is asked for more (``/v1/models``,
``/version``) on each connection before a row is sent on it: a server that was started again, or that took another one's place
behind the same address, is met on a new connection. `nightshift.driver.http` does this, for every request of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, NoReturn

WHAT_TO_DO: Final = (
    "Answers of the two must not be mixed. Start the engine as it was, and let no other one have its address; to use what it "
    "serves now, begin another run"
)


class WrongEngine(Exception):
    """The engine runs but does not serve what the job asks for; retrying cannot help."""


class Strange(Exception):
    """One of several engines serves something else than the run began with; the others may go on."""


@dataclass(frozen=True, slots=True)
class Served:
    """root: where the model is from. max_model_len: in tokens, prompt and answer. None for what the engine does not say."""

    name: str
    root: str | None
    max_model_len: int | None
    version: str

    def __str__(self) -> str:
        said = {"from": self.root, "version": self.version, "max_model_len": self.max_model_len}
        return ", ".join([repr(self.name), *(f"{name} {value}" for name, value in said.items() if value is not None)])


@dataclass(eq=False)
class Serving:
    """What all engines of one worker serve.

    read(models, version): what an engine's answers say, shown by ``str()``; raises WrongEngine if they say nothing. fit(found):
    raises WrongEngine if the job cannot use it. same(found): what of it must stay, compared by ``==``; by default all.
    engines: how many there are. first: what they serve, if it is known before `meet`. remedy: what to do if one serves
    something else.
    """

    read: Callable[[Any, str], Any]
    _: KW_ONLY
    fit: Callable[[Any], None] = lambda _: None
    same: Callable[[Any], Any] = lambda found: found
    engines: int = 1
    first: Any = None
    remedy: str = WHAT_TO_DO
    _strangers: set[object] = field(init=False, default_factory=set)

    def meet(self, models: Any, version: str) -> None:
        """An engine's answers before the work begins. Raises WrongEngine if it is not fit, or not like the others."""
        found = self.read(models, version)
        self.fit(found)
        if self.first is not None and self.same(found) != self.same(self.first):
            raise WrongEngine(f"the engines differ: one serves {self.first}; another {found}. Start all in the same way")
        self.first = found

    def check(self, engine: object, where: str, models: Any, version: str) -> None:
        """An engine's answers on a new connection, or after a gap. where: its address.

        Raises Strange if it does not serve what all did at first; WrongEngine if no other engine is left that does.
        """
        try:
            found = self.read(models, version)
        except WrongEngine as error:
            self.refuse(engine, where, str(error))
        if self.same(found) != self.same(self.first):
            self.refuse(engine, where, str(found))
        self._strangers.discard(engine)

    def refuse(self, engine: object, where: str, found: str) -> NoReturn:
        """Notes what the engine serves instead. Raises as `check` does."""
        self._strangers.add(engine)
        said = f"{where} serves something else than the run began with. Expected: {self.first}. Found: {found}. {self.remedy}"
        if len(self._strangers) >= self.engines:
            raise WrongEngine(said)
        raise Strange(said)

    def is_stranger(self, engine: object) -> bool:
        """Whether it served something else when it was asked last."""
        return engine in self._strangers


def read_served(models: Any, version: str, *, name: str) -> Served:
    """What an engine serves under the job's name. models: the answer of ``/v1/models``. Raises WrongEngine."""
    try:
        served = {str(item["id"]): (item.get("root"), item.get("max_model_len")) for item in models["data"]}
    except (AttributeError, KeyError, TypeError):
        raise WrongEngine("the engine's /v1/models does not list models") from None
    if name not in served:
        raise WrongEngine(f"the engine serves {list(served)}, but the job asks for {name!r}")
    return Served(name, *served[name], version)


def check_fit(served: Served, *, root: str | None = None, max_model_len: int | None = None, answer_tokens: int = 0) -> None:
    """Checks what an engine serves against the job. Raises WrongEngine.

    root: where the model must come from, as vLLM's ``--model`` had it; the engine must say so. max_model_len: the longest
    input in tokens that the engine must take, if it says so. None for what may be anything. answer_tokens: how many tokens
    an answer may have, which must leave room for a prompt.
    """
    length = served.max_model_len
    if root is not None and served.root != root:
        place = f"from {served.root!r}" if served.root else "and does not say from where (root)"
        raise WrongEngine(
            f"the engine serves {served.name!r} {place}, but must serve it from {root!r}. If its --model names the same files "
            "in another way, set NIGHTSHIFT_MODEL_ROOT to the same value where this driver or preview runs"
        )
    if None not in (max_model_len, length) and length != max_model_len:
        raise WrongEngine(f"the engine takes {length} tokens (max_model_len), but the job asks for {max_model_len}")
    if isinstance(length, int) and length <= answer_tokens:
        raise WrongEngine(
            f"an answer may have {answer_tokens} tokens (request.max_tokens), but prompt and answer together have {length} "
            "(the engine's max_model_len): it would refuse every row. Lower request.max_tokens, or raise engine.max_model_len"
        )
