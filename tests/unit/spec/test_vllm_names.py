"""Flags of vLLM in a job file: one that it does not have is warned of, and one that would make the model another is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from nightshift import cli
from nightshift.spec import SpecErrors, load
from nightshift.spec.engine_checks import doubts
from nightshift.spec.values import ENGINE_FLAGS
from nightshift.spec.vllm_flags import COUNT, NUMBER, ON, SIZE, SWITCH, takes
from nightshift.spec.vllm_names import NAMES, OTHER_MODEL, elsewhere, unknown
from tests.builders import a_spec
from tests.unit.spec_file import job

pytestmark = pytest.mark.unit

FIRST: Final = NAMES["0.32.0"]
FREE: Final = [name for name in FIRST if name.removeprefix("no-") not in ENGINE_FLAGS]
"""Those that a job may set, as far as their names go."""
FILES: Final = 500
REFUSED: Final[dict[str, Any]] = {name: "dummy" if name == "load-format" else "x" for name in OTHER_MODEL}


def changed_by(first: str, second: str) -> int:
    """Letters to add, drop, change or swap with the next (the restricted distance of Damerau)."""
    rows = [list(range(len(second) + 1))]
    for i, a in enumerate(first, 1):
        row = [i]
        for j, b in enumerate(second, 1):
            row.append(min(rows[i - 1][j] + 1, row[j - 1] + 1, rows[i - 1][j - 1] + (a != b)))
            if i > 1 and j > 1 and a == second[j - 2] and first[i - 2] == b:
                row[j] = min(row[j], rows[i - 2][j - 2] + 1)
        rows.append(row)
    return rows[-1][-1]


def misspelt(name: str, rng: random.Random) -> str:
    """With one slip of the finger, which makes it the name of no flag, nor the beginning of one that nightshift refuses."""
    while True:
        at = rng.randrange(1, len(name) - 1)
        slips = (
            name[:at] + name[at + 1 :],
            name[:at] + name[at] + name[at:],
            name[:at] + name[at + 1] + name[at] + name[at + 2 :],
            name[:at] + rng.choice("aeiostrn") + name[at + 1 :],
            name + "s",
            name.replace("-", "", 1),
        )
        found = rng.choice(slips)
        known = any(found in names for names in NAMES.values())
        starts = any(each.startswith(found) for each in (*ENGINE_FLAGS, *OTHER_MODEL))
        if not (known or starts or "--" in found or found.endswith("-")):
            return found


def value_of(name: str, rng: random.Random) -> Any:
    """One that the rules for values take; None for a flag with a list of its own words."""
    kind = takes(name)
    if kind is None:
        return rng.choice(FIRST[name] or ["x", 7, True])
    return {COUNT.form: 1, NUMBER.form: 0.5, SIZE.form: "8k", SWITCH.form: True, ON.form: True}.get(kind.form)


def drawn(rng: random.Random) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    """Flags that are right, misspelt ones with what was meant, and flags that make the model another."""
    fine = {
        name: value for name in rng.sample(FREE, 5) if name not in OTHER_MODEL and (value := value_of(name, rng)) is not None
    }
    slips = {misspelt(name, rng): name for name in rng.sample(FREE, rng.randint(0, 3))}
    other = dict(rng.sample(sorted(REFUSED.items()), rng.choice((0, 0, 1, 2))))
    for name in [each for each in fine if f"no-{each}" in fine]:
        del fine[name]  # The two are refused together.
    if "tokenizer" in fine:
        other.pop("tokenizer-revision", None)
    return fine, slips, other


def refusals(file: Path) -> list[str]:
    """The place of each mistake."""
    try:
        load(file)
    except SpecErrors as error:
        return [line.split(": ")[1] for line in str(error).splitlines()]
    return []


def test_every_slip_is_warned_of_with_the_flag_that_was_meant_and_every_other_model_is_refused(tmp_path: Path) -> None:
    rng = random.Random("flags")
    slips_in_all = exact = refused_in_all = 0
    for number in range(FILES):
        fine, slips, other = drawn(rng)
        args = {**fine, **dict.fromkeys(slips, "x"), **other}
        order = rng.sample(sorted(args), len(args))
        spelt = {name: name.replace("-", "_") if rng.random() < 0.2 else name for name in order}
        file = tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump(job(engine__args={spelt[name]: args[name] for name in order}), sort_keys=False))

        told = refusals(file)
        assert sorted(told) == sorted(f"engine.args.{spelt[name]}" for name in other), (args, told)
        refused_in_all += len(told)

        warned = list(unknown({spelt[name]: args[name] for name in order}, None))
        assert len(warned) == len(slips), (args, warned)
        for slip, meant in slips.items():
            (line,) = [each for each in warned if f" --{slip}." in each]
            near = line.partition("Did you mean ")[2].rstrip("?")
            # What is as near to what was written may have been meant as well.
            assert near == meant or changed_by(slip, near) <= changed_by(slip, meant), line
            exact += near == meant
        slips_in_all += len(slips)
    assert slips_in_all > 500
    assert refused_in_all > 200
    assert exact > 0.97 * slips_in_all, (exact, slips_in_all)


def test_no_flag_of_a_release_is_warned_of() -> None:
    for version, names in {(0, 32): FIRST, (0, 33): {**FIRST, **NAMES["0.33.0"]}}.items():
        assert not list(unknown({name: words[-1] if words else "x" for name, words in names.items()}, version))
    assert not list(unknown({"enforce-eager": False, "no_enforce_eager": True}, (0, 32)))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"kv-cache-dtype": "fp9"}, "--kv-cache-dtype takes one of auto, bfloat16, "),
        ({"max_lora_rank": 12}, "--max-lora-rank takes one of 1, 128, "),
        ({"collect-detailed-traces": ["model", "pod"]}, "--collect-detailed-traces takes one of None, all, model, worker"),
        ({"kv-cache-dtype": "fp8"}, ""),
        ({"max-lora-rank": 16}, ""),
        ({"collect-detailed-traces": ["model", "worker"]}, ""),
        ({"block-size": 12}, ""),
    ],
)
def test_a_word_that_a_flag_does_not_take_is_warned_of(args: dict[str, Any], said: str) -> None:
    assert [line.startswith(said) for line in unknown(args, None)] == [True] * bool(said)


def test_a_tokenizer_of_another_repository_is_pinned_or_warned_of() -> None:
    def doubts_of(**args: str) -> list[str]:
        spec = a_spec(engine__args={name.replace("_", "-"): value for name, value in args.items()})
        return [line for line in doubts(spec) if line.startswith("engine.args.tokenizer: Add tokenizer-revision")]

    assert len(doubts_of(tokenizer="org/other")) == 1
    assert doubts_of(tokenizer="org/other", tokenizer_revision="r2") == []
    assert doubts_of(tokenizer="/tokenizers/t") == []
    assert doubts_of() == []


def test_what_a_later_release_adds_is_named_with_it() -> None:
    assert list(unknown({"monokernel": True}, (0, 32))) == [
        "--monokernel is new in vLLM 0.33.0, and the engine's image has vLLM 0.32."
    ]
    assert not list(unknown({"monokernel": True}, (0, 33)))
    assert not list(unknown({"monokernel": True}, None))


@pytest.mark.parametrize("name", OTHER_MODEL)
def test_any_beginning_that_vllm_would_take_is_refused_too(name: str) -> None:
    value, none = REFUSED[name], frozenset[str]()

    assert elsewhere(name, value, none) is OTHER_MODEL[name]
    for end in range(4, len(name)):
        if name[:end] not in FIRST and not any(each.startswith(name[:end]) for each in ENGINE_FLAGS):
            assert elsewhere(name[:end], value, none) is not None


@pytest.mark.parametrize(
    "args",
    [
        {"enable-lora": False},
        {"no-enable-lora": True},
        {"load-format": "safetensors"},
        {"tokenizer": "org/t", "tokenizer-revision": "r2"},
        {"hf-overrides": '{"is_matryoshka": true}'},
        {"quantization": "fp8"},
        {"speculative-config": '{"method": "ngram", "num_speculative_tokens": 2}'},
    ],
)
def test_what_leaves_the_model_what_it_is_may_be_set(tmp_path: Path, args: dict[str, Any]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job(engine__args=args)))

    assert load(file).engine.args == args


def test_validate_says_it_with_the_version_of_the_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_CPU_SERVER_IMAGE", "vllm/vllm-openai-cpu:v0.33.0")
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job(engine__args={"enforce-eagr": True, "kv-cache-dtype": "fp8"})))

    assert cli.main(["validate", str(file)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"{file}: valid")
    assert said.err == (
        f"{file}: engine.args: vLLM 0.32.0 and 0.33.0 have no flag --enforce-eagr, and the engine's image has vLLM 0.33. "
        "Did you mean enforce-eager?\n"
    )
