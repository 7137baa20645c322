"""A `lorikeet serve` of the tests' own, on a free port of the loopback, and the shipped tasks."""

import json
import lzma
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import time

import httpx

ROOT = pathlib.Path(__file__).resolve().parents[3]
BINARY = os.environ.get("LORIKEET_BIN", str(ROOT / "build/release/bin/lorikeet"))
MODEL = ROOT / "models/tiny-gpt-oss-mxfp4"
TASKS = ("json", "math", "sql")
ADAPTERS = {task: MODEL / "adapters" / task for task in TASKS}
BASE = "tiny-gpt-oss-mxfp4"


def task_rows(task, count):
    """The first rows of a task: dicts with q and a."""
    with lzma.open(ROOT / f"tests/data/tasks/{task}.jsonl.xz", "rt") as lines:
        return [json.loads(line) for _, line in zip(range(count), lines)]


def ask(row):
    return [{"role": "user", "content": row["q"]}]


class Server:
    def __init__(self, flags=(), name=BASE, start_limit=60):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = tempfile.TemporaryFile()
        command = [BINARY, "serve", str(MODEL), "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--served-model-name", name, *map(str, flags)]
        if threads := os.environ.get("LORIKEET_TEST_THREADS"):  # fewer, where the machine is shared
            command += ["--threads", threads]
        self.process = subprocess.Popen(command, stdout=self.output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + start_limit
        while time.monotonic() < deadline:
            assert self.alive(), self.log()
            try:
                if httpx.get(self.url + "/ready", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        raise AssertionError("the server does not become ready:\n" + self.log())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def alive(self):
        return self.process.poll() is None

    def log(self):
        self.output.seek(0)
        return self.output.read().decode(errors="replace")[-4000:]

    def stop(self, limit=30):
        """Asks it to end (SIGTERM); its exit code must be 0."""
        if self.alive():
            self.process.terminate()
        try:
            assert self.process.wait(limit) == 0, self.log()
        finally:
            self.process.kill()

    def metrics(self):
        return httpx.get(self.url + "/metrics", timeout=10).text

    def gauge(self, name):
        """The sum of a metric over its labels."""
        pattern = rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$"
        values = re.findall(pattern, self.metrics(), re.MULTILINE)
        assert values, f"/metrics has no {name}"
        return sum(map(float, values))

    def running(self):
        return self.gauge("vllm:num_requests_running") + self.gauge("vllm:num_requests_waiting")

    def wait_running(self, limit=10):
        deadline = time.monotonic() + limit
        while self.running() == 0:
            assert time.monotonic() < deadline, "no request has begun"
            time.sleep(0.01)

    def wait_idle(self, limit):
        deadline = time.monotonic() + limit
        while (count := self.running()) > 0:
            assert time.monotonic() < deadline, f"{count:.0f} requests are still there"
            time.sleep(0.02)

    def post(self, path, body, **options):
        return httpx.post(self.url + path, json=body, timeout=60, **options)
