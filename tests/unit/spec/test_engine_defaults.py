"""With what an engine starts where the author says nothing: by accelerator, task, length, version and what is stated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nightshift.jobset.manifest.render import render
from nightshift.jobset.manifest.server import SERVE, server_args
from nightshift.planner.model import model_of
from nightshift.planner.plan import Decision, weigh
from nightshift.planner.roofline import Tokens
from nightshift.planner.speed import Known, api_servers_of
from nightshift.profiles import PROFILES, Span, WorkerShape, fit
from nightshift.settings import Settings
from nightshift.spec.engine_defaults import QUIET, SINCE, TOKENS, Hints, Wanted, defaults_of, number, version_of, vllm_tokens
from nightshift.spec.vllm_flags import affects_answers, takes
from nightshift.tasks import TASK_KINDS, request_model
from nightshift.tasks._request import ListRequest
from tests.builders import RUN, a_plan, a_spec
from tests.engine_defaults_page import PAGE, with_table
from tests.unit import model_configs as configs

pytestmark = pytest.mark.unit

L4, H100, A100_80 = "gpu-l4-spot", "gpu-h100-spot", "gpu-a100-80gb-spot"


def shape_of(profile: str, **span: Any) -> WorkerShape:
    return fit(PROFILES[profile], Span(**span))


def tokens(profile: str, task: str = "chat", length: int | None = None, seats: int | None = None, **more: Any) -> Any:
    """What is set; None if it is left to vLLM."""
    hints = Hints(more.pop("weights", None))
    return defaults_of(Wanted(task, seats, length, **more), shape_of(profile), hints=hints).flags.get(TOKENS)


@pytest.mark.parametrize(
    ("profile", "seats", "a_step"),
    [
        ("cpu", 256, 4096),
        (L4, 256, 8192),
        ("gpu-a100-spot", 256, 8192),
        (A100_80, 256, 8192),
        (H100, 1024, 16384),
        ("gpu-h200-spot", 1024, 16384),
        ("gpu-rtx-pro-6000-spot", 1024, 16384),
        ("gpu-b200-spot", 1024, None),
        ("tpu-v5e-spot", 256, None),
        ("tpu-v6e-spot", 256, None),
    ],
)
def test_a_job_gets_what_vllms_class_for_offline_work_takes(profile: str, seats: int, a_step: int | None) -> None:
    found = defaults_of(Wanted("chat", None, None), shape_of(profile))
    assert (found.seats, found.flags.get(TOKENS)) == (seats, a_step)


def test_a_stream_keeps_the_defaults_of_the_server() -> None:
    for profile, seats in (("cpu", 128), (L4, 256), (H100, 1024)):
        found = defaults_of(Wanted("embedding", None, 256, offline=False), shape_of(profile))
        assert (found.seats, dict(found.flags)) == (seats, {})


class TestTokens:
    def test_a_text_that_may_be_read_in_one_step_fits_into_one(self) -> None:
        for task in ("embedding", "classify", "score", "rerank"):
            assert tokens(L4, task, 8192) == 8192
            assert tokens(L4, task, 8193) is None, "vLLM takes at least the length"
            assert tokens(L4, task) is None, "the length is not known here"
        assert tokens(L4, "chat", 131_072) == 8192, "cut into steps"

    @pytest.mark.parametrize("args", [{"enable-chunked-prefill": False}, {"no-enable-chunked-prefill": True}])
    def test_nor_does_a_model_start_that_may_not_cut(self, args: dict[str, Any]) -> None:
        assert tokens(L4, "chat", 32_768, flags=args) is None
        assert tokens(L4, "chat", 4096, flags=args) == 8192

    def test_no_more_than_all_texts_together(self) -> None:
        """Above that vLLM warns, and would reserve memory for nothing."""
        assert tokens(L4, "embedding", 512, seats=8) == 4096
        assert tokens(L4, "embedding", 128, seats=16) is None, "as `vllm serve` takes anyway"

    def test_weights_that_leave_little_room_keep_it(self) -> None:
        assert tokens(L4, weights=15.9e9) == 8192
        assert tokens(L4, weights=16.1e9) is None
        two = shape_of(A100_80, tensor_parallel=2)
        assert TOKENS not in defaults_of(Wanted("chat", None, None), two, hints=Hints(141e9)).flags
        four = shape_of(A100_80, tensor_parallel=4)
        assert defaults_of(Wanted("chat", None, None), four, hints=Hints(141e9)).flags[TOKENS] == 8192

    def test_never_less_than_the_rows_at_once(self) -> None:
        """vLLM does not start with fewer."""
        for profile in PROFILES:
            for seats in (1, 4096):
                assert (tokens(profile, seats=seats) or 4096) >= seats


class TestApiServers:
    HINTS = Hints(api_servers={L4: 4})

    def launched(self, profile: str = L4, hints: Hints = HINTS, **args: Any) -> tuple[list[str], list[str]]:
        """Command and arguments of the server's container."""
        named = {name.replace("_", "-"): value for name, value in args.items()}
        spec = a_spec(engine={"args": named}, compute__profile=profile)
        rendered = render(spec, RUN, a_plan(8), Settings("b", "p"), name="night", hints=hints)
        [replicated] = rendered["spec"]["replicatedJobs"]
        [server] = replicated["template"]["spec"]["template"]["spec"]["initContainers"]
        return server["command"], server["args"]

    def test_several_are_started_where_the_planner_says_so(self) -> None:
        command, args = self.launched()
        assert command == SERVE
        assert args[0] == "org/m"
        assert "--api-server-count=4" in args
        assert not [word for word in args if word.startswith("--model=")], "`vllm serve` takes it as its argument"

    def test_what_is_stated_wins(self) -> None:
        assert "--api-server-count=2" in self.launched(api_server_count=2)[1]
        args = self.launched(api_server_count=1)[1]
        assert [word for word in args if "api-server" in word] == ["--api-server-count=1"]

    def test_one_where_the_planner_says_nothing(self) -> None:
        for profile, hints in ((H100, self.HINTS), (L4, Hints())):
            command, args = self.launched(profile, hints)
            assert command == SERVE
            assert not [word for word in args if "api-server" in word]

    def test_the_planner_says_it_of_rows_that_are_known_to_be_short(self) -> None:
        model = model_of(configs.MINILM)
        spec = a_spec(engine={"max_model_len": 256}, compute={"profile": L4, "fallback": ["cpu", H100]})
        _, decision, _ = weigh(spec, 1_000_000, Known(Tokens(14, 0, "sampled"), model))
        assert decision.api_servers == {L4: 4, H100: 4}
        assert Decision.from_json(json.loads(json.dumps(decision.to_json()))).hints == decision.hints
        assert any(each.endswith("api-server-count 4") for each in decision.reasons)
        assert api_servers_of(spec, Known(Tokens(14, 0, "assumed", assumed=True), model)) == {}
        assert api_servers_of(spec, Known(Tokens(14, 0, "sampled"))) == {}
        image = a_spec(task="image", request={"image": "photo", "user": "?"}, compute__profile=H100)
        assert api_servers_of(image, Known(Tokens(14, 0, "sampled"), model)) == {}


class TestWhatIsStated:
    def test_wins_flag_by_flag(self) -> None:
        assert tokens(L4, flags={"max-num-batched-tokens": 512}) is None
        assert tokens(L4, flags={"max-num-scheduled-tokens": 512}) is None, "vLLM wants at least as many in all"
        found = defaults_of(Wanted("chat", 7, None, {"disable-uvicorn-access-log": False}), shape_of(L4))
        assert (found.seats, found.stated, dict(found.flags)) == (7, True, {TOKENS: 8192})
        assert not defaults_of(Wanted("chat", 7, None, {"no-disable-uvicorn-access-log": True}), shape_of("tpu-v6e-spot")).flags

    def test_bounds_the_rows_at_once_where_vllm_would_not_start(self) -> None:
        def seats(**args: Any) -> int:
            named = {name.replace("_", "-"): value for name, value in args.items()}
            return defaults_of(Wanted("chat", None, None, named), shape_of(H100)).seats

        assert seats(max_num_batched_tokens=512) == 512
        assert seats(max_num_batched_tokens="0.5k") == 500
        assert seats(max_num_batched_tokens="8K") == 1024
        assert seats(max_num_active_seqs=2000) == 2000

    def test_is_found_however_its_name_is_written(self) -> None:
        spec = a_spec(engine={"args": {"max_num_batched_tokens": 512}}, compute__profile=H100)
        assert (spec.defaults().seats, spec.defaults().flags) == (512, {QUIET: True})

    def test_is_a_flag_twice_on_no_command_line(self) -> None:
        args = {"max-num-batched-tokens": 512, "disable-uvicorn-access-log": False, "seed": 7}
        words = server_args(a_spec(engine={"args": args}, compute__profile=L4))
        assert [word for word in words if "batched" in word or "uvicorn" in word] == [
            "--max-num-batched-tokens=512",
            "--no-disable-uvicorn-access-log",
        ]
        assert words.count("--max-num-seqs=256") == 1


@pytest.mark.parametrize(
    ("profile", "offline", "served"),
    [
        ("cpu", 4096, 2048),
        (L4, 8192, 2048),
        (A100_80, 8192, 2048),
        (H100, 16384, 8192),
        ("gpu-b200-spot", 16384, 16384),
        ("tpu-v6e-spot", None, None),
    ],
)
def test_what_vllm_takes_by_itself(profile: str, offline: int | None, served: int | None) -> None:
    """As in EngineArgs.get_batch_defaults of vLLM 0.32."""
    assert (vllm_tokens(shape_of(profile), offline=True), vllm_tokens(shape_of(profile), offline=False)) == (offline, served)


@pytest.mark.parametrize(
    ("value", "size"),
    [(512, 512), ("512", 512), ("8k", 8000), ("8K", 8192), ("1.5k", 1500), ("x", None), (True, None), (None, None)],
)
def test_a_size_as_vllm_reads_it(value: Any, size: int | None) -> None:
    assert number(value) == size


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.33.0", (0, 33)),
        ("vllm/vllm-openai-cpu:v0.31.0-x86_64", (0, 31)),
        ("registry.example:5000/mirror/vllm-tpu:0.27.0", (0, 27)),
        ("vllm/vllm-openai:v0.33.0@sha256:" + "0" * 64, (0, 33)),
        ("vllm/vllm-openai@sha256:" + "0" * 64, None),
        ("registry.example:5000/engine", None),
        ("registry.example/engine:2.3.1", None),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai:nightly-0123abc", None),
    ],
)
def test_the_version_is_that_of_the_images_tag(image: str, version: tuple[int, int] | None) -> None:
    assert version_of(image) == version


class TestVersions:
    def test_what_an_engine_lacks_is_left_out_and_named(self) -> None:
        found = defaults_of(Wanted("chat", None, None), shape_of(L4), (0, 7))
        assert dict(found.flags) == {TOKENS: 8192}
        assert (
            found.words
            == "max_num_seqs 256, max-num-batched-tokens 8,192; without disable-uvicorn-access-log, which vLLM 0.7 lacks"
        )

    def test_the_images_of_this_release_have_all_flags(self) -> None:
        """So an unknown version may count as theirs."""
        settings = Settings("b", "p")
        for image in (settings.server_image, settings.cpu_server_image, settings.tpu_server_image):
            version = version_of(image)
            assert version is not None
            assert not [flag for flag, since in SINCE.items() if version < since]


@pytest.mark.parametrize(
    ("profile", "engines", "flags", "part"),
    [
        (H100, 1, {}, {}),
        (H100, 2, {}, {"gpu-memory-utilization": 0.45}),
        (H100, 7, {}, {"gpu-memory-utilization": 0.128}),
        (H100, 2, {"kv-cache-memory-bytes": 2**30}, {"gpu-memory-utilization": 0.45}),
        (H100, 2, {"gpu-memory-utilization": 0.2}, {}),
        (H100, 2, {"device-memory-utilization": 0.2}, {}),
        ("cpu", 8, {}, {"kv-cache-memory-bytes": 2**28}),
        ("cpu", 2, {"kv-cache-memory-bytes": 2**28}, {}),
        ("cpu", 2, {"gpu-memory-utilization": 0.1}, {}),
    ],
)
def test_engines_that_share_a_worker_have_equal_parts_of_its_memory(
    profile: str, engines: int, flags: dict[str, Any], part: dict[str, Any]
) -> None:
    found = defaults_of(Wanted("chat", None, None, flags), shape_of(profile, engines=engines)).flags

    assert {name: value for name, value in found.items() if "memory" in name} == part
    assert all(takes(name).fits(value) and not affects_answers(name) for name, value in part.items())  # type: ignore[union-attr]


def test_no_default_affects_answers_and_each_is_a_value_that_a_job_may_have() -> None:
    for profile in PROFILES:
        flags = defaults_of(Wanted("chat", None, None), shape_of(profile)).flags
        assert QUIET in flags
        for flag, value in flags.items():
            kind = takes(flag)
            assert kind is not None
            assert (affects_answers(flag), kind.fits(value), flag in SINCE) == (False, True, True)


def test_tasks_whose_endpoint_takes_lists_are_those_that_pool() -> None:
    for task in TASK_KINDS:
        pools = issubclass(request_model(task), ListRequest) or task == "rerank"
        assert (tokens(L4, task) is None) is pools, task


class TestSeats:
    def test_the_driver_gets_the_number_of_its_workers_profile(self) -> None:
        spec = a_spec(engine={}, compute={"profile": H100, "fallback": [L4]})
        assert spec.tuning()["engine"] == {"max_num_seqs": 1024}
        assert spec.tuning(spec.compute.worker(L4))["engine"] == {"max_num_seqs": 256}
        assert spec.with_tuning(spec.tuning(spec.compute.worker(L4))).seats() == 256

    def test_a_profile_of_another_deployment_does_not_stop_who_reads_a_run(self) -> None:
        spec = a_spec(engine={}, compute={"profile": "gpu-of-others"}, request={"input": "{{ text }}"})
        assert (spec.seats(), spec.rows_per_request) == (256, 64)

    def test_a_number_that_is_left_out_again_follows_the_default(self) -> None:
        frozen = a_spec(engine={"max_num_seqs": 8})
        assert frozen.under_terms_of(a_spec(engine={})).seats() == 256
        assert a_spec(engine={}).semantic() == frozen.semantic()


def test_the_page_has_the_table() -> None:
    """`python -m tests.engine_defaults_page` renews it."""
    assert PAGE.read_text() == with_table(PAGE.read_text())
