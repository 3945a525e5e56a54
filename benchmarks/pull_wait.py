"""``python -m benchmarks.pull_wait SUBSCRIPTION ENGINE_URL COUNT``: a subscriber in the usual shape.

Our own re-implementation of the shape of the public reference subscriber, not its code: it pulls up to 64 messages, sends each
from a thread of a pool, waits for the slowest, logs the answers and acknowledges all of them in one call. Nothing extends
leases while it waits. It ends when it has acknowledged COUNT messages.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc
import requests
from google.pubsub_v1 import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

AT_ONCE: Final = 64


def main() -> None:
    subscription, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    channel = grpc.insecure_channel(os.environ["PUBSUB_EMULATOR_HOST"])
    client = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
    session = requests.Session()
    session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=AT_ONCE))

    def ask(data: bytes) -> str:
        body = {"model": "m", "messages": [{"role": "user", "content": json.loads(data)["text"]}]}
        answer: str = session.post(f"{url}/v1/chat/completions", json=body, timeout=600).json()["choices"][0]["message"][
            "content"
        ]
        return answer

    done = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while done < count:
            received = client.pull(subscription=subscription, max_messages=AT_ONCE).received_messages
            if not received:
                continue
            for answer in pool.map(ask, [each.message.data for each in received]):
                print(answer[:40])
            client.acknowledge(subscription=subscription, ack_ids=[each.ack_id for each in received])
            done += len(received)


if __name__ == "__main__":
    main()
