"""A thousand callers of other people's HTTP libraries, with those libraries' defaults: each gets its own answer.

Not in the gate: it needs a JDK, Go and curl, and skips those that are not there.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.integration.stream.servers import BatcherProcess, Callers, Upstream

pytestmark = pytest.mark.integration

COUNT: Final = 1000
AT_ONCE: Final = 50
BODY: Final = '{"model": "m", "input": "caller %d"}'

PYTHON: Final = """
import sys, urllib.request
from concurrent.futures import ThreadPoolExecutor
def ask(n):
    body = b'{"model": "m", "input": "caller %d"}' % n
    request = urllib.request.Request(sys.argv[1], body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return "%d %d %s" % (n, reply.status, reply.read().decode())
with ThreadPoolExecutor(AT_ONCE) as pool:
    for line in pool.map(ask, range(COUNT)):
        print(line)
"""
JAVA: Final = """
import java.net.URI;
import java.net.http.*;
import java.util.concurrent.*;
public class Ask {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        ExecutorService pool = Executors.newFixedThreadPool(AT_ONCE);
        for (int each = 0; each < COUNT; each++) {
            int n = each;
            pool.submit(() -> {
                HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0]))
                    .header("Content-Type", "application/json")
                    .POST(HttpRequest.BodyPublishers.ofString(
                        "{\\"model\\": \\"m\\", \\"input\\": \\"caller " + n + "\\"}")).build();
                HttpResponse<String> reply = client.send(request, HttpResponse.BodyHandlers.ofString());
                synchronized (client) { System.out.println(n + " " + reply.statusCode() + " " + reply.body()); }
                return null;
            });
        }
        pool.shutdown();
        pool.awaitTermination(60, TimeUnit.SECONDS);
        System.exit(0);
    }
}
"""
GO: Final = """
package main
import ("fmt"; "io"; "net/http"; "os"; "strings"; "sync")
func main() {
    var all sync.WaitGroup
    var printing sync.Mutex
    places := make(chan bool, AT_ONCE)
    for n := 0; n < COUNT; n++ {
        all.Add(1)
        places <- true
        go func(n int) {
            defer func() { <-places; all.Done() }()
            asked := fmt.Sprintf(`{"model": "m", "input": "caller %d"}`, n)
            reply, err := http.Post(os.Args[1], "application/json", strings.NewReader(asked))
            if err != nil { fmt.Fprintln(os.Stderr, err); return }
            body, _ := io.ReadAll(reply.Body)
            reply.Body.Close()
            printing.Lock()
            fmt.Printf("%d %d %s\\n", n, reply.StatusCode, body)
            printing.Unlock()
        }(n)
    }
    all.Wait()
}
"""


def filled(text: str) -> str:
    return text.replace("AT_ONCE", str(AT_ONCE)).replace("COUNT", str(COUNT))


def python(folder: Path) -> list[str]:
    (folder / "ask.py").write_text(filled(PYTHON))
    return [sys.executable, str(folder / "ask.py")]


def java(folder: Path) -> list[str]:
    (folder / "Ask.java").write_text(filled(JAVA))
    return [needed("java", "javac"), str(folder / "Ask.java")]


def go(folder: Path) -> list[str]:
    (folder / "ask.go").write_text(filled(GO))
    return [needed("go"), "run", str(folder / "ask.go")]


def curl(folder: Path) -> list[str]:
    """One process, a transfer for each, its body from a file larger than curl sends without a question (Expect)."""
    lines = []
    for n in range(COUNT):
        lines += [f'data = "{(BODY % n).replace(chr(34), chr(92) + chr(34))}"', 'header = "Content-Type: application/json"']
        lines += [f'write-out = "{n} %{{http_code}} "', "url = URL", "next"]
    (folder / "config").write_text("\n".join(lines[:-1]))
    return [
        needed("curl"),
        "--no-progress-meter",
        "--parallel",
        "--parallel-max",
        str(AT_ONCE),
        "--config",
        str(folder / "config"),
    ]


def needed(*programs: str) -> str:
    found = [shutil.which(each) or shutil.which(each, path="/usr/local/go/bin") for each in programs]
    if None in found:
        pytest.skip(f"there is no {programs[found.index(None)]}")
    return str(found[0])


@pytest.mark.parametrize("library", [python, java, go, curl], ids=["python", "java", "go", "curl"])
async def test_each_caller_of_a_library_gets_its_own_answer(library: Callable[[Path], list[str]], tmp_path: Path) -> None:
    command = library(tmp_path)
    with Upstream() as upstream, BatcherProcess(upstream.url) as batcher:
        url = f"{batcher.url}/v1/embeddings"
        if library is curl:
            file = tmp_path / "config"
            file.write_text(file.read_text().replace("url = URL", f'url = "{url}"'))
        process = await asyncio.create_subprocess_exec(
            *command, *([] if library is curl else [url]), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        said, errors = await asyncio.wait_for(process.communicate(), 120)
        async with Callers(batcher) as callers:
            await callers.until("in_hand", 0)
            metrics = await callers.metrics()

    assert process.returncode == 0, errors.decode()[-2000:]
    assert metrics['nightshift_batcher_callers_total{endpoint="embeddings",status="200"}'] == COUNT
    assert len(upstream.seen) < COUNT, "they shared requests"
    if library is curl:
        # Its transfers write into one stream, in pieces of their own.
        assert said.count(b'"embedding"') == COUNT
        return
    answers = {}
    for line in said.decode().splitlines():
        number, status, body = line.split(" ", 2)
        answers[int(number)] = (int(status), json.loads(body)["data"][0]["embedding"][0])
    assert answers == {n: (200, float(zlib.crc32(f"caller {n}".encode()))) for n in range(COUNT)}
