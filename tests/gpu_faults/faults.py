#!/usr/bin/env python3
"""Wrong drivers, taken memory and lost GPUs: one sentence, a failing /health and an exit, never a hang.

Runs lorikeet against a stand-in for the driver's library (driver.c) that fails on demand. What needs no GPU runs everywhere;
the rest where there is one.

usage: tests/gpu_faults/faults.py BIN    (BIN: folder with lorikeet of the cuda preset)
"""
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = str(ROOT / "models/tiny-gpt-oss-mxfp4")
UNAVAILABLE, ILLEGAL_ADDRESS, UNKNOWN = "46", "700", "999"  # CUresult
failures = []


def expect(good, *what):
    if not good:
        failures.append(" ".join(map(str, what))[:600])


def real_driver():
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
    found = re.findall(r"libcuda\.so\.1 .*x86-64.* => (\S+)", listed)
    found += [str(p) for p in pathlib.Path("/usr/local/nvidia").rglob("libcuda.so.1")] if os.path.isdir("/usr/local/nvidia") else []
    return found[0] if found else None


class Trial:
    """One program against the stand-in, in a folder of its own."""

    def __init__(self, stand_in, lorikeet):
        self.stand_in, self.lorikeet = stand_in, lorikeet
        self.folder = tempfile.TemporaryDirectory()
        self.fault = f"{self.folder.name}/fault"
        self.log = open(f"{self.folder.name}/log", "w+")

    def environment(self, **more):
        libraries = f"{self.stand_in}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
        return {**os.environ, "LD_LIBRARY_PATH": libraries, "DRIVER_FAULT": self.fault, **more}

    def run(self, *arguments, **environment):
        return subprocess.run([self.lorikeet, *arguments], capture_output=True, text=True, timeout=120, env=self.environment(**environment))

    def serve(self, *flags):
        self.server = subprocess.Popen(
            [self.lorikeet, "serve", MODEL, "--device", "cuda", "--served-model-name", "base", "--port", "0", "--lora-modules",
             f"sql={MODEL}/adapters/sql", "--allow-runtime-lora", "--lora-root", f"{MODEL}/adapters", *flags],
            stdout=self.log, stderr=subprocess.STDOUT, env=self.environment(DRIVER_REAL=real_driver()))
        begin = time.time()
        while time.time() < begin + 60:
            found = re.search(r"ready on http://127\.0\.0\.1:(\d+)", self.text())
            if found:
                self.port = int(found[1])
                return self
            if self.server.poll() is not None:
                break
            time.sleep(0.05)
        raise SystemExit(f"the server did not start: {self.text()}")

    def text(self):
        return pathlib.Path(self.log.name).read_text()

    def ask(self, method, path, body=None, timeout=30):
        """(status, body); None where nobody answers."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        except OSError:
            return None
        except http.client.HTTPException:
            return None

    def lose(self, how):
        with open(self.fault + ".new", "w") as file:
            file.write(how)
        os.rename(self.fault + ".new", self.fault)

    def streams(self, count):
        """Answers that go on for as long as the context allows; what each got at its end."""
        ends = []

        def one(name):
            ends.append(self.ask("POST", "/v1/completions", {
                "model": name, "prompt": "a", "max_tokens": 900, "ignore_eos": True, "stream": True}, timeout=120))

        threads = [threading.Thread(target=one, args=("sql" if i % 2 else "base",)) for i in range(count)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        return threads, ends

    def ended(self, seconds, code=1):
        """Ends by itself, or is counted as a hang."""
        try:
            got = self.server.wait(seconds)
            expect(got == code, "exit code", got, "instead of", code, self.text()[-400:])
        except subprocess.TimeoutExpired:
            expect(False, "still running after", seconds, "s:", self.text()[-400:])
            self.server.kill()
            self.server.wait()
        crash = re.search(r"terminate called|Segmentation|Aborted", self.text())
        expect(not crash, "crashed:", self.text()[-400:])


def no_driver(trial):
    for flags, words in (({}, "there is no NVIDIA GPU"), ({"DRIVER_VERSION": "12040"}, "the NVIDIA driver supports CUDA 12.4, and 13.0 is needed"),
                         ({"DRIVER_VERSION": "0"}, "there is no NVIDIA driver")):
        for command in (["run", MODEL, "--prompt", "a", "--max-tokens", "2"], ["inspect", MODEL], ["serve", MODEL, "--port", "0"]):
            told = trial.run(*command, "--device", "cuda", **flags)
            expect(told.returncode == 2 and words in told.stderr and told.stderr.count("\n") == 1, command[0], flags, told.returncode, told.stderr)
        told = trial.run("run", MODEL, "--prompt", "a", "--max-tokens", "2", **flags)
        expect(told.returncode == 0, "auto", flags, told.stderr)


def lost_beside_streams(trial, how):
    trial.serve()
    threads, ends = trial.streams(16)
    trial.lose(how)
    trial.ended(20)
    for thread in threads:
        thread.join()
    expect("engine_ended" in trial.text() and "the GPU failed" in trial.text(), "no sentence:", trial.text()[-400:])
    for end in ends:
        expect(end is not None and "the GPU failed" in end[1], "a stream ended without the reason:", end)


def lost_while_idle(trial):
    trial.serve()
    expect(trial.ask("POST", "/v1/completions", {"model": "sql", "prompt": "a", "max_tokens": 3})[0] == 200, "no answer")
    trial.lose(UNAVAILABLE)
    trial.ended(20)
    expect("the GPU failed" in trial.text(), "no sentence:", trial.text()[-400:])


def lost_while_adapters_load(trial):
    trial.serve()
    trial.lose(UNAVAILABLE)
    for i in range(20):
        told = trial.ask("POST", "/v1/load_lora_adapter", {"lora_name": f"x{i}", "lora_path": f"{MODEL}/adapters/json"})
        if told is None:
            break
        expect(told[0] >= 500, "loaded onto a lost GPU:", told)
    trial.ended(20)


def lost_while_the_model_loads(trial):
    trial.lose(UNAVAILABLE)
    told = trial.run("serve", MODEL, "--device", "cuda", "--port", "0", DRIVER_REAL=real_driver())
    expect(told.returncode in (1, 2) and told.stderr.strip() and "terminate" not in told.stderr, "at the start:", told.returncode, told.stderr)


def run_loses_it(trial):
    program = subprocess.Popen([trial.lorikeet, "run", MODEL, "--device", "cuda", "--prompt", "a", "--max-tokens", "4000", "--ignore-eos"],
                               stdout=trial.log, stderr=subprocess.PIPE, text=True, env=trial.environment(DRIVER_REAL=real_driver()))
    begin = time.time()
    while not trial.text() and time.time() < begin + 30:
        time.sleep(0.05)  # until it writes
    trial.lose(UNKNOWN)
    try:
        _, told = program.communicate(timeout=20)
        expect(program.returncode == 1 and "the GPU failed" in told and told.count("\n") == 1, "run:", program.returncode, told)
    except subprocess.TimeoutExpired:
        program.kill()
        expect(False, "run hangs")


def hangs(trial):
    trial.serve()
    threads, _ = trial.streams(4)
    trial.lose("hang")
    time.sleep(1)
    expect(trial.ask("GET", "/health") is not None, "the server itself hangs")
    trial.ended(60 + 30)
    for thread in threads:
        thread.join()
    expect("a step of the engine has been running" in trial.text(), "no sentence:", trial.text()[-400:])


def memory_is_taken(trial):
    trial.serve("--kv-cache-memory", "2GiB")
    free = int(subprocess.run(["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"], capture_output=True,
                              text=True, check=True).stdout.split()[0])
    told = trial.run("serve", MODEL, "--device", "cuda", "--port", "0", "--kv-cache-memory", f"{free // 1024 + 1}GiB", DRIVER_REAL=real_driver())
    expect(told.returncode == 2 and told.stderr.strip(), "more than is free:", told.returncode, told.stderr[-400:])
    trial.server.send_signal(signal.SIGTERM)
    trial.ended(20, code=0)


def main():
    lorikeet = str(pathlib.Path(sys.argv[1]).resolve() / "lorikeet")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", f"{folder}/libcuda.so.1",
                        str(pathlib.Path(__file__).with_name("driver.c")), "-ldl", "-lpthread"], check=True)
        trials = [(no_driver,)]
        if real_driver():
            trials += [(lost_beside_streams, UNAVAILABLE), (lost_beside_streams, ILLEGAL_ADDRESS), (lost_while_idle,), (lost_while_adapters_load,),
                       (lost_while_the_model_loads,), (run_loses_it,), (memory_is_taken,), (hangs,)]
        for function, *arguments in trials:
            before, begin = len(failures), time.time()
            function(Trial(folder, lorikeet), *arguments)
            print(f"{function.__name__} {' '.join(arguments)}: {'good' if len(failures) == before else 'FAILED'} ({time.time() - begin:.1f} s)")
            for failure in failures[before:]:
                print("  ", failure)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
