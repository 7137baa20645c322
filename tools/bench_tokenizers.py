#!/usr/bin/env python3
"""Speed of the Hugging Face `tokenizers` library on one thread, as bench/tokenizer_bench.cc measures ours.

    python3 tools/bench_tokenizers.py TOKENIZER.json TEXT [repeats]
"""
import os
import statistics
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402


def main():
    start = time.perf_counter()
    tokenizer = Tokenizer.from_file(sys.argv[1])
    load = time.perf_counter() - start
    data = open(sys.argv[2], "rb").read()
    text = data.decode("utf-8", errors="replace")
    repeats = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        encoding = tokenizer.encode(text)
        times.append(time.perf_counter() - start)
    mb = len(data) / 1e6
    print(f"load {load * 1e3:.0f} ms, {len(encoding)} tokens, first {mb / times[0]:.1f} MB/s, "
          f"median of {repeats} {mb / statistics.median(times):.1f} MB/s")


if __name__ == "__main__":
    main()
