#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hundreds of clients, good and bad, against one `fluvial serve`; then looks for anything that was left behind.

    tools/soak/soak.py PROGRAM MODEL [--clients 500] [--seconds 600] [--serve-options="--max-num-seqs 64"] [--json FILE]

Good clients stream or wait for seeded answers and compare them with what the server said when it was alone. Bad ones
leave early, send broken bodies and broken HTTP, oversized bodies and images, or read slowly. /health is asked from a
process of its own. Fails (exit 1) on a wrong answer, a crash, a request, slot, page or descriptor that is not given
back, memory that grows, or p99 of /health over the bound. Python's standard library is enough.
"""
import argparse
import asyncio
import collections
import http.client
import json
import multiprocessing
import random
import shlex
import signal
import subprocess
import sys
import time
import urllib.parse

WORDS = "the river runs past a stone bridge and through the old town before it meets the sea".split()
KINDS = {"stream": 50, "whole": 15, "leave": 12, "leave_at_once": 5, "broken_body": 5, "broken_http": 4, "oversized": 2,
         "image": 2, "slow": 5}
BROKEN = [b"{", b"", b"[]", b"\xff\xfe", b'{"prompt": 1}', b'{"prompt": "x", "max_tokens": -1}', b'{"prompt": "x", "typo": 1}',
          b'{"prompt": ' + b"[" * 10000, b'{"prompt": "x", "logprobs": 99}', b"x" * 5000]
BROKEN_HTTP = [b"GARBAGE\r\n\r\n", b"GET /health HTTP/9.9\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
               b"GET / HTTP/1.1\r\nX: " + b"x" * 40000 + b"\r\n\r\n"]


def question(i):
    rng = random.Random(i)
    return {"prompt": " ".join(rng.choices(WORDS, k=rng.randint(1, 10))), "max_tokens": rng.randint(8, 48), "seed": i,
            "temperature": rng.choice([0, 0.7, 1.0]), "ignore_eos": True}


def post(body, path="/v1/completions"):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: soak\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def ask(host, port, method, path, body=None, timeout=120):
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


class Clients:
    """One process' share of the clients."""

    def __init__(self, host, port, expected, clients, deadline, seed):
        self.host, self.port, self.expected, self.deadline = host, port, expected, deadline
        self.count = collections.Counter()
        self.wrong = []
        self.clients, self.seed = clients, seed

    async def exchange(self, request, read_all=True, events=0, delay=0.0):
        """Bytes of the answer; leaves after `events` events when that is above 0."""
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 16)
        try:
            writer.write(request)
            await writer.drain()
            if not read_all and events == 0:
                return b""
            data = bytearray()
            while True:
                piece = await asyncio.wait_for(reader.read(1 << 12 if delay else 1 << 16), 180)
                if not piece:
                    return bytes(data)
                data += piece
                if events and data.count(b"data: ") >= events:
                    return bytes(data)
                if delay:
                    await asyncio.sleep(delay)
        finally:
            writer.close()
            try:
                await writer.wait_closed()
            except OSError:
                pass

    def check(self, i, text, what):
        if text != self.expected[i]:
            self.wrong.append(f"{what} {i}: {text!r} instead of {self.expected[i]!r}")

    async def one(self, rng):
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        i = rng.randrange(len(self.expected))
        body = question(i)
        self.count[kind] += 1
        if kind in ("stream", "slow"):
            raw = await self.exchange(post({**body, "stream": True}), delay=0.2 if kind == "slow" else 0.0)
            head, _, rest = raw.partition(b"\r\n\r\n")
            if b" 503 " in head[:20]:
                self.count["503"] += 1
                return
            events = [e.removeprefix("data: ") for e in b"".join(chunks(rest)).decode().split("\n\n") if e]
            if not events or events[-1] != "[DONE]":
                self.wrong.append(f"stream {i} ended with {raw[-80:]!r}")
                return
            parsed = [json.loads(e) for e in events[:-1]]
            bad = [p for p in parsed if "error" in p]
            if bad:
                self.wrong.append(f"stream {i}: {bad[0]}")
                return
            self.check(i, "".join(p["choices"][0]["text"] for p in parsed), "stream")
            if sum(p["choices"][0]["finish_reason"] is not None for p in parsed) != 1:
                self.wrong.append(f"stream {i} has not exactly one finish_reason")
        elif kind == "whole":
            raw = await self.exchange(post(body))
            head, _, rest = raw.partition(b"\r\n\r\n")
            if b" 200 " not in head[:20]:
                self.count[head[9:12].decode()] += 1
                if b" 503 " not in head[:20]:
                    self.wrong.append(f"whole {i}: {raw[:200]!r}")
                return
            self.check(i, json.loads(rest)["choices"][0]["text"], "whole")
        elif kind == "leave":
            await self.exchange(post({**body, "max_tokens": 2000, "stream": True}), events=3)
        elif kind == "leave_at_once":
            await self.exchange(post({**body, "max_tokens": 2000}), read_all=False)
        elif kind == "broken_body":
            self.expect_status(await self.exchange(post(rng.choice(BROKEN))), (400,), kind)
        elif kind == "broken_http":
            self.expect_status(await self.exchange(rng.choice(BROKEN_HTTP)), (400, 431), kind)
        elif kind == "oversized":
            self.expect_status(await self.exchange(post(b"")[:-4].replace(b"Length: 0", b"Length: 999999999") + b"\r\n\r\n" + b"x" * 100000),
                               (413,), kind)
        elif kind == "image":
            url = "data:image/png;base64," + "A" * 400000
            message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
            self.expect_status(await self.exchange(post({"messages": [message]}, "/v1/chat/completions")), (400,), kind)

    def expect_status(self, raw, allowed, kind):
        if not any(f" {s} ".encode() in raw[:20] for s in allowed) and b" 503 " not in raw[:20]:
            self.wrong.append(f"{kind}: {raw[:120]!r}")

    async def client(self, number):
        rng = random.Random(self.seed * 100003 + number)
        while time.time() < self.deadline:
            try:
                await self.one(rng)
            except (ConnectionError, asyncio.IncompleteReadError) as e:
                self.wrong.append(f"{type(e).__name__}: {e}")
            except (asyncio.TimeoutError, TimeoutError):
                self.wrong.append("no answer within 180 s")

    async def run(self):
        await asyncio.gather(*(self.client(n) for n in range(self.clients)))


def chunks(data):
    while data:
        size, _, data = data.partition(b"\r\n")
        n = int(size, 16)
        if n == 0:
            return
        yield data[:n]
        data = data[n + 2:]


def run_clients(queue, *arguments):
    clients = Clients(*arguments)
    asyncio.run(clients.run())
    queue.put((dict(clients.count), clients.wrong))


def run_health(queue, host, port, deadline):
    times = []
    connection = http.client.HTTPConnection(host, port, timeout=30)
    while time.time() < deadline:
        start = time.perf_counter()
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        times.append(time.perf_counter() - start if response.status == 200 else 30.0)
        time.sleep(0.02)
    queue.put(times)


def metrics(host, port):
    text = ask(host, port, "GET", "/metrics")[1].decode()
    values = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            values[name.split("{")[0]] = values.get(name.split("{")[0], 0) + float(value)
    return values


LEAKS = ["fluvial:requests_active", "vllm:num_requests_running", "vllm:num_requests_waiting", "fluvial:state_slots_used",
         "fluvial:kv_pages_used"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--processes", type=int, default=2, help="processes that share the clients")
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--health-p99-ms", type=float, default=50)
    parser.add_argument("--memory-growth", type=float, default=0.05, help="allowed between a third and the end of the run")
    parser.add_argument("--serve-options", default="")
    parser.add_argument("--json", help="write the figures to this file")
    o = parser.parse_args()

    server = subprocess.Popen([o.program, "serve", o.model, "--port", "0", "--served-model-name", "soak", "--log-level", "error",
                               *shlex.split(o.serve_options)], stdout=subprocess.PIPE, text=True)
    url = urllib.parse.urlparse(server.stdout.readline().rsplit(" on ", 1)[-1].strip())
    host, port = url.hostname, url.port
    failures = []
    try:
        print(f"seed {o.seed}, {o.clients} clients, {o.seconds:g} s, server process {server.pid}")
        expected = []
        for i in range(o.questions):
            status, body = ask(host, port, "POST", "/v1/completions", question(i))
            assert status == 200, body
            expected.append(json.loads(body)["choices"][0]["text"])
        before = metrics(host, port)
        deadline = time.time() + o.seconds
        queue, health = multiprocessing.Queue(), multiprocessing.Queue()
        workers = []
        for p in range(o.processes):
            share = o.clients // o.processes + (p < o.clients % o.processes)
            workers.append(multiprocessing.Process(
                target=run_clients, args=(queue, host, port, expected, share, deadline, o.seed * 10 + p)))
        workers.append(multiprocessing.Process(target=run_health, args=(health, host, port, deadline)))
        for w in workers:
            w.start()
        memory, most_connections = [], 0
        while time.time() < deadline:
            time.sleep(min(5, max(0.1, deadline - time.time())))
            m = metrics(host, port)
            memory.append(m["process_resident_memory_bytes"])
            most_connections = max(most_connections, m["fluvial:http_connections"])
        count, wrong = collections.Counter(), []
        for _ in range(o.processes):
            c, w = queue.get(timeout=300)
            count.update(c)
            wrong += w
        times = sorted(health.get(timeout=60))
        for w in workers:
            w.join()
        until = time.time() + 10
        while time.time() < until:
            after = metrics(host, port)
            if all(after[name] == 0 for name in LEAKS) and after["fluvial:http_connections"] <= 1:
                break
            time.sleep(0.1)
        failures += [f"{len(wrong)} wrong answers, e.g. {wrong[0]}"] if wrong else []
        failures += [f"{name} is {after[name]:g} at the end" for name in LEAKS if after[name] != 0]
        if after["process_open_fds"] > before["process_open_fds"] + 1:
            failures.append(f"open descriptors: {before['process_open_fds']:g} before, {after['process_open_fds']:g} after")
        third = memory[len(memory) // 3]
        if memory[-1] > third * (1 + o.memory_growth):
            failures.append(f"memory grew from {third / 2**20:.1f} to {memory[-1] / 2**20:.1f} MiB")
        p99 = times[min(len(times) - 1, int(len(times) * 0.99))] * 1000
        if p99 > o.health_p99_ms:
            failures.append(f"p99 of /health is {p99:.1f} ms, the bound is {o.health_p99_ms:g} ms")
        if server.poll() is not None:
            failures.append(f"the server ended with {server.returncode}")
        figures = {
            "clients": o.clients, "seconds": o.seconds, "seed": o.seed, "requests": dict(count),
            "most_connections": most_connections,
            "generated_tokens": after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"],
            "disconnects": after["fluvial:client_disconnects_total"],
            "preemptions": after["vllm:num_preemptions_total"],
            "health_ms": {"count": len(times), "p50": times[len(times) // 2] * 1000, "p99": p99, "max": times[-1] * 1000},
            "memory_mib": {"before": before["process_resident_memory_bytes"] / 2**20, "third": third / 2**20,
                           "end": memory[-1] / 2**20},
            "open_fds": {"before": before["process_open_fds"], "after": after["process_open_fds"]},
            "failures": failures,
        }
        print(json.dumps(figures, indent=2))
        if o.json:
            with open(o.json, "w") as f:
                json.dump(figures, f, indent=2)
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
        status = server.wait(timeout=60)
    if status != 0:
        failures.append(f"the server ended with {status}")
    print("soak: " + ("; ".join(failures) if failures else "nothing wrong"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
