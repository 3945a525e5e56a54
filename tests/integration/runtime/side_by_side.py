"""Runs test functions that wait much longer than they compute at the same time, and keeps how each of them ended."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any, Final

import pytest

AT_ONCE: Final = 8

Case = Callable[..., None]


def cases_of(module: ModuleType) -> dict[str, Case]:
    """Its test functions, by name."""
    return {name: case for name, case in vars(module).items() if name.startswith("test_") and inspect.isfunction(case)}


def chosen(request: pytest.FixtureRequest, test: Case) -> list[str]:
    """The values of the parameter `case` with which `test` is to run in this session."""
    items: list[Any] = request.session.items
    return [item.callspec.params["case"] for item in items if getattr(item, "function", None) is test]


def run(cases: Mapping[str, Case], names: Iterable[str], values: Callable[[str], Mapping[str, Any]]) -> dict[str, Future[None]]:
    """Runs them to their ends. values: what a case of this name gets for its parameters."""

    def run_one(name: str) -> None:
        given = values(name)
        cases[name](**{each: given[each] for each in inspect.signature(cases[name]).parameters})

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {name: pool.submit(run_one, name) for name in names}
