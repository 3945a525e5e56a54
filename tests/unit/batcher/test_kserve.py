"""KServe's requests merged into one, and the reply divided. Pure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nightshift.batcher.endpoint import Asked, WrongReply
from nightshift.batcher.kserve import Infer, Predict

pytestmark = pytest.mark.unit


def asked(endpoint: Predict | Infer, *bodies: Any) -> list[Asked]:
    found = [endpoint.read(json.dumps(body).encode()) for body in bodies]
    return [each for each in found if each is not None]


def tensor(shape: list[int], data: Any, name: str = "x", datatype: str = "FP32", **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": shape, "datatype": datatype, "data": data, **more}


class TestPredict:
    BODIES = ({"instances": [1, [2]], "signature_name": "s"}, {"signature_name": "s", "instances": [{"a": "b"}]})

    def test_instances_become_one_list(self) -> None:
        merged = Predict().merge(asked(Predict(), *self.BODIES))

        assert json.loads(merged) == {"signature_name": "s", "instances": [1, [2], {"a": "b"}]}

    def test_each_gets_its_predictions(self) -> None:
        reply = b'{"model_name": "m", "predictions": [10, 20, [30]]}'

        parts = Predict().split(reply, asked(Predict(), *self.BODIES))
        assert [json.loads(part) for part in parts] == [
            {"model_name": "m", "predictions": [10, 20]},
            {"model_name": "m", "predictions": [[30]]},
        ]

    @pytest.mark.parametrize(
        ("reply", "why"),
        [
            (b'{"predictions": [1, 2]}', "2 results for 3 inputs"),
            (b'{"predictions": [1, 2, 3, 4]}', "4 results for 3"),
            (b'{"predictions": {"a": [1, 2, 3]}}', "no list of results as 'predictions'"),
            (b'{"outputs": [1, 2, 3]}', "no list of results as 'predictions'"),
            (b'{"predictions": [1, 2, NaN]}', "not a JSON object"),
        ],
    )
    def test_a_reply_that_does_not_fit_is_nobodys(self, reply: bytes, why: str) -> None:
        with pytest.raises(WrongReply, match=why):
            Predict().split(reply, asked(Predict(), *self.BODIES))

    @pytest.mark.parametrize("body", [{"inputs": [1]}, {"instances": []}, {"instances": {"a": 1}}, {"instances": None}, []])
    def test_what_goes_alone(self, body: Any) -> None:
        assert asked(Predict(), body) == []

    def test_instances_that_cannot_be_written_go_alone(self) -> None:
        assert Predict().read(b'{"instances": ' + b"[" * 600 + b"]" * 600 + b"}") is None

    def test_other_parameters_are_not_merged(self) -> None:
        one, other = asked(Predict(), {"instances": [1]}, {"instances": [1], "signature_name": "s"})

        assert one.shared != other.shared


class TestInfer:
    def test_tensors_are_joined_along_their_first_axis(self) -> None:
        bodies = [
            {"id": "one", "inputs": [tensor([1, 2], [1, 2]), tensor([1], ["é"], "t", "BYTES")]},
            {"inputs": [tensor([2, 2], [3, 4, 5, 6]), tensor([2], ["b", "c"], "t", "BYTES")]},
        ]

        assert json.loads(Infer().merge(asked(Infer(), *bodies))) == {
            "inputs": [tensor([3, 2], [1, 2, 3, 4, 5, 6]), tensor([3], ["é", "b", "c"], "t", "BYTES")]
        }

    def test_nested_data_too(self) -> None:
        bodies = [{"inputs": [tensor([1, 2], [[1, 2]])]}, {"inputs": [tensor([2, 2], [[3, 4], [5, 6]])]}]

        assert json.loads(Infer().merge(asked(Infer(), *bodies)))["inputs"] == [tensor([3, 2], [[1, 2], [3, 4], [5, 6]])]

    def test_the_rest_is_what_they_share(self) -> None:
        more = {"parameters": {"priority": 1}, "outputs": [{"name": "y", "parameters": {"classification": 2}}]}
        merged = Infer().merge(asked(Infer(), {"inputs": [tensor([1], [1])], **more}, {**more, "inputs": [tensor([1], [2])]}))

        assert json.loads(merged) == {**more, "inputs": [tensor([2], [1, 2])]}

    @pytest.mark.parametrize(
        "other",
        [
            tensor([1, 2], [1, 2], name="z"),
            tensor([1, 2], [1, 2], datatype="INT32"),
            tensor([1, 3], [1, 2, 3]),
            tensor([1, 2, 1], [1, 2]),
            tensor([1, 2], [[1, 2]]),
            tensor([1, 2], [1, 2], parameters={"content_type": "np"}),
        ],
    )
    def test_tensors_that_differ_are_not_merged(self, other: dict[str, Any]) -> None:
        one, two = asked(Infer(), {"inputs": [tensor([1, 2], [1, 2])]}, {"inputs": [other]})

        assert one.shared != two.shared

    @pytest.mark.parametrize(
        "inputs",
        [
            [],
            [tensor([2, 2], [1, 2, 3])],
            [tensor([2, 2], [[1, 2], [3]])],
            [tensor([2, 2], [[1, 2, 3], [4]])],
            [tensor([2, 2], [[1, 2]])],
            [tensor([2, 2], [[1, 2], 3])],
            [tensor([2, 2], [[1, [2]], [3, 4]])],
            [tensor([2], [[1], [2]])],
            [tensor([], [])],
            [tensor([0, 2], [])],
            [tensor([-1, 2], [1, 2])],
            [tensor([True], [1])],
            [tensor([1] * 65, [1])],
            [tensor([1], "a")],
            [tensor([1], [1]), tensor([2], [1, 2], "t")],
            [{"name": "x", "shape": [1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}],
            [tensor([1], [1], parameters={"binary_data_size": 4})],
            [tensor([1], [1], parameters=7)],
            ["x"],
        ],
    )
    def test_inputs_that_go_alone(self, inputs: list[Any]) -> None:
        assert asked(Infer(), {"inputs": inputs}) == []

    @pytest.mark.parametrize(
        "change",
        [
            {"parameters": {"binary_data_output": True}},
            {"parameters": {"sequence_id": 3}},
            {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]},
            {"outputs": "y"},
            {"id": 7},
        ],
    )
    def test_requests_that_go_alone(self, change: dict[str, Any]) -> None:
        assert asked(Infer(), {"inputs": [tensor([1], [1])], **change}) == []


class TestTheReplyToInfer:
    BODIES = ({"id": "one", "inputs": [tensor([1], [1])]}, {"inputs": [tensor([2], [2, 3])]})

    def divided(self, *outputs: Any, **more: Any) -> list[Any]:
        reply = json.dumps({"model_name": "m", "outputs": list(outputs), **more}).encode()
        return [json.loads(part) for part in Infer().split(reply, asked(Infer(), *self.BODIES))]

    def test_each_gets_its_rows_and_its_own_id(self) -> None:
        one, other = self.divided(tensor([3, 2], [1, 2, 3, 4, 5, 6], "y"), tensor([3], ["a", "b", "c"], "l", "BYTES"), id="u")

        assert one == {
            "model_name": "m",
            "id": "one",
            "outputs": [tensor([1, 2], [1, 2], "y"), tensor([1], ["a"], "l", "BYTES")],
        }
        assert other == {
            "model_name": "m",
            "id": "u-1",
            "outputs": [tensor([2, 2], [3, 4, 5, 6], "y"), tensor([2], ["b", "c"], "l", "BYTES")],
        }

    def test_nested_data_too(self) -> None:
        one, other = self.divided(tensor([3, 1, 2], [[[1, 2]], [[3, 4]], [[5, 6]]], "y"))

        assert one["outputs"] == [tensor([1, 1, 2], [[[1, 2]]], "y")]
        assert other["outputs"] == [tensor([2, 1, 2], [[[3, 4]], [[5, 6]]], "y")]
        assert "id" not in other, "the server gave none"

    @pytest.mark.parametrize(
        ("output", "why"),
        [
            (tensor([2], [1, 2], "y"), r"'y' has the shape \[2\], and 3 rows went out"),
            (tensor([1, 3], [1, 2, 3], "y"), "and 3 rows went out"),
            (tensor([3], [1, 2], "y"), "do not fill its shape"),
            (tensor([3, 2], [[1, 2], [3, 4], [5]], "y"), "do not fill its shape"),
            ({"name": "y", "shape": [3], "parameters": {"binary_data_size": 12}}, "do not fill its shape"),
            ({"name": "y"}, "has the shape None"),
            ("y", "no list of objects"),
        ],
    )
    def test_a_reply_that_does_not_fit_is_nobodys(self, output: Any, why: str) -> None:
        with pytest.raises(WrongReply, match=why):
            self.divided(output)


def cut(endpoint: Predict | Infer, body: Any, most: int) -> list[Any]:
    """The bodies of the pieces."""
    (whole,) = asked(endpoint, body)
    return [json.loads(endpoint.merge([piece])) for piece in endpoint.cut(whole, most)]


class TestInPieces:
    def test_instances(self) -> None:
        pieces = cut(Predict(), {"instances": [1, [2], "3"], "signature_name": "s"}, 2)

        assert pieces == [{"instances": [1, [2]], "signature_name": "s"}, {"instances": ["3"], "signature_name": "s"}]

    def test_predictions_become_one_list(self) -> None:
        (whole,) = asked(Predict(), {"instances": [1, 2, 3]})
        replies = [b'{"predictions": [10, [20]], "model": "m"}', b'{"predictions": [30], "model": "m"}']

        assert json.loads(Predict().join(replies, Predict().cut(whole, 2))) == {"model": "m", "predictions": [10, [20], 30]}

    @pytest.mark.parametrize(
        "reply", [b'{"predictions": {"scores": [1]}}', b'{"predictions": [1, 2]}', b'{"predictions": [1], "explanations": [1]}']
    )
    def test_of_other_replies_none_is_made(self, reply: bytes) -> None:
        (whole,) = asked(Predict(), {"instances": [1, 2]})

        with pytest.raises(WrongReply):
            Predict().join([reply, b'{"predictions": [1]}'], Predict().cut(whole, 1))

    @pytest.mark.parametrize("nested", [False, True])
    def test_tensors_go_by_rows(self, nested: bool) -> None:
        rows = [[n, n + 0.5] for n in range(3)]
        data = rows if nested else [value for row in rows for value in row]
        body = {"id": "mine", "inputs": [tensor([3, 2], data), tensor([3], ["a", "b", "c"], "y", "BYTES")]}

        assert cut(Infer(), body, 2) == [
            {"inputs": [tensor([2, 2], data[: 2 if nested else 4]), tensor([2], ["a", "b"], "y", "BYTES")]},
            {"inputs": [tensor([1, 2], data[2 if nested else 4 :]), tensor([1], ["c"], "y", "BYTES")]},
        ]

    @pytest.mark.parametrize("own", [{}, {"id": "mine"}])
    def test_outputs_become_one(self, own: dict[str, str]) -> None:
        (whole,) = asked(Infer(), {**own, "inputs": [tensor([3], [1, 2, 3])]})
        replies = [
            {
                "id": "made-up",
                "model_name": "m",
                "outputs": [tensor([2, 2], [1, 2, 3, 4]), tensor([2], ["a", "b"], "y", "BYTES")],
            },
            {"id": "other", "model_name": "m", "outputs": [tensor([1, 2], [5, 6]), tensor([1], ["c"], "y", "BYTES")]},
        ]

        joined = Infer().join([json.dumps(each).encode() for each in replies], Infer().cut(whole, 2))
        assert json.loads(joined) == {
            "id": own.get("id", "made-up"),
            "model_name": "m",
            "outputs": [tensor([3, 2], [1, 2, 3, 4, 5, 6]), tensor([3], ["a", "b", "c"], "y", "BYTES")],
        }

    @pytest.mark.parametrize(
        "outputs",
        [
            [tensor([1, 3], [5, 6, 7])],
            [tensor([1, 2], [[5, 6]])],
            [tensor([1, 2], [5, 6], datatype="INT32")],
            [tensor([1, 2], [5, 6], name="z")],
            [],
            [tensor([1, 2], [5, 6]), tensor([1], [1], "z")],
            [tensor([2, 2], [5, 6, 7, 8])],
        ],
    )
    def test_unless_they_differ_in_form(self, outputs: list[Any]) -> None:
        (whole,) = asked(Infer(), {"inputs": [tensor([3], [1, 2, 3])]})
        replies = [{"outputs": [tensor([2, 2], [1, 2, 3, 4])]}, {"outputs": outputs}]

        with pytest.raises(WrongReply):
            Infer().join([json.dumps(each).encode() for each in replies], Infer().cut(whole, 2))


class TestWhatNobodyCanDivide:
    """A list beside the results may have something of each caller: copied to all, one caller would read another's."""

    @pytest.mark.parametrize("more", [{"explanations": [1, 2, 3]}, {"details": {"texts": ["a"]}}, {"details": {"0": {"a": 1}}}])
    def test_beside_predictions(self, more: dict[str, Any]) -> None:
        reply = json.dumps({"predictions": [1, 2, 3], **more}).encode()

        with pytest.raises(WrongReply, match="may be about single items"):
            Predict().split(reply, asked(Predict(), *TestPredict.BODIES))

    @pytest.mark.parametrize("inside", [True, False])
    def test_beside_tensors(self, inside: bool) -> None:
        more: dict[str, Any] = {"parameters": {"texts": ["a", "b"]}}
        output = tensor([2], [1, 2], **(more if inside else {}))
        reply = json.dumps({"outputs": [output], **({} if inside else more)}).encode()
        both = asked(Infer(), {"inputs": [tensor([1], [1])]}, {"inputs": [tensor([1], [2])]})

        with pytest.raises(WrongReply, match="may be about single items"):
            Infer().split(reply, both)

    def test_what_holds_for_the_reply_is_everybodys(self) -> None:
        reply = b'{"predictions": [1, 2, 3], "model": "m", "parameters": {"version": 2}, "warnings": [], "x": null}'

        first, second = Predict().split(reply, asked(Predict(), *TestPredict.BODIES))
        assert json.loads(first)["parameters"] == json.loads(second)["parameters"] == {"version": 2}
