"""What vLLM's engines for structured output make of schemas. Runs in the server environment: a JSON list of schemas on stdin;
on stdout a list of [xgrammar, llguidance], each "serves", "refuses" (400), "fails" (500) or "wrong".

"wrong": it never writes what the schema takes, or what JSON is, as far as a walk through its grammar shows.
"""

from __future__ import annotations

import json
import random
import re
import sys
from typing import Any, Final

import jsonschema  # type: ignore[import-untyped]
import llguidance
import xgrammar
from vllm.v1.structured_output import backend_guidance, backend_xgrammar

WALKS: Final = 24
STEPS: Final = 400
END: Final = 256
COMPILER: Final = xgrammar.GrammarCompiler(
    xgrammar.TokenizerInfo(
        [*(bytes([byte]) for byte in range(256)), b"</s>"], xgrammar.VocabType.RAW, vocab_size=END + 1, stop_token_ids=[END]
    ),
    max_threads=1,
)


def by_xgrammar(schema: dict[str, Any]) -> str:
    text = json.dumps(schema)
    try:
        if backend_xgrammar.has_xgrammar_unsupported_json_features(schema):
            return "refuses"
        xgrammar.Grammar.from_json_schema(text)
    except Exception:  # as vLLM does
        return "refuses"
    try:
        compiled = COMPILER.compile_json_schema(text, any_whitespace=False)
    except Exception:
        return "fails"
    chance = random.Random(text)
    return "serves" if any(fits(walk(compiled, chance), schema) for _ in range(WALKS)) else "wrong"


def walk(compiled: Any, chance: random.Random) -> bytes:
    matcher, written = xgrammar.GrammarMatcher(compiled), b""
    for _ in range(STEPS):
        mask = xgrammar.allocate_token_bitmask(1, END + 1)
        matcher.fill_next_token_bitmask(mask)
        bits = mask.numpy().view("uint32")[0]
        allowed = [token for token in range(END + 1) if bits[token // 32] >> (token % 32) & 1]
        if not allowed or (END in allowed and chance.random() < 0.7):
            break
        # An end of a text that is allowed is taken often, and letters beyond ASCII, whose bytes may make none, hardly ever.
        ends = [token for token in allowed if token == ord('"')]
        plain = [token for token in allowed if token < 128]
        token = ends[0] if ends and chance.random() < 0.3 else chance.choice(plain or allowed)
        if token == END:
            break
        matcher.accept_token(token)
        written += bytes([token])
    return written


def fits(written: bytes, schema: dict[str, Any]) -> bool:
    try:
        return bool(jsonschema.Draft202012Validator(schema).is_valid(json.loads(written)))
    except (ValueError, re.error):
        return False


def by_llguidance(schema: dict[str, Any]) -> str:
    try:
        prepared = backend_guidance.process_for_additional_properties(schema)
        grammar = llguidance.LLMatcher.grammar_from_json_schema(prepared, defaults={"whitespace_flexible": False})
    except ValueError:
        return "fails"
    return "refuses" if llguidance.LLMatcher.validate_grammar(grammar, None) else "serves"


if __name__ == "__main__":
    json.dump([[by_xgrammar(schema), by_llguidance(schema)] for schema in json.load(sys.stdin)], sys.stdout)
