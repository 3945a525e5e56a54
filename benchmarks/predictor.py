"""``python -m benchmarks.predictor VLLM_URL MODEL``: KServe's V1 ``:predict`` in front of vLLM's embeddings.

It prints its port. What a KServe predictor does: instances are texts, predictions are vectors (in base64). A refusal keeps
vLLM's status and words.
"""

from __future__ import annotations

import socket
import sys

import orjson
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nightshift.driver.http import HttpClient

TIMEOUT_S = 120.0


async def serve(url: str, model: str) -> None:
    client = HttpClient(url, headers={"Content-Type": "application/json"})

    async def predict(request: Request) -> Response:
        instances = orjson.loads(await request.body())["instances"]
        body = orjson.dumps({"model": model, "input": instances, "encoding_format": "base64"})
        reply = await client.request("POST", "/v1/embeddings", body, timeout_s=TIMEOUT_S)
        if reply.status != 200:
            return Response(reply.body, reply.status, media_type="application/json")
        vectors = [each["embedding"] for each in orjson.loads(reply.body)["data"]]
        return Response(orjson.dumps({"predictions": vectors}), media_type="application/json")

    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listener.getsockname()[1], flush=True)
    app = Starlette(routes=[Route("/v1/models/{name}:predict", predict, methods=["POST"])])
    config = uvicorn.Config(app, loop="uvloop", http="httptools", lifespan="off", log_config=None, access_log=False)
    async with client:
        await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2]))
