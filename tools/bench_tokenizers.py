#!/usr/bin/env python3
"""Speed of the Hugging Face `tokenizers` library on one thread, in CPU time, as bench/tokenizer_bench.cc measures ours.

    python3 tools/bench_tokenizers.py TOKENIZER.json TEXT [repeats]
"""
import os
import statistics
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402

PIECE = 2000  # bytes


def cut(data):
    pieces = []
    while data:
        newline = data.find(b"\n", min(PIECE, len(data)))
        n = len(data) if newline < 0 else newline + 1
        pieces.append(data[:n])
        data = data[n:]
    return pieces


def measure(tokenizer, pieces, repeats):
    texts = [p.decode("utf-8", errors="replace") for p in pieces]
    mb = sum(map(len, pieces)) / 1e6
    times = []
    for _ in range(repeats):
        start = time.process_time()
        tokens = sum(len(tokenizer.encode(text)) for text in texts)
        times.append(time.process_time() - start)
    return f"{tokens} tokens, first {mb / times[0]:.1f} MB/s, median {mb / statistics.median(times):.1f} MB/s"


def main():
    start = time.process_time()
    tokenizer = Tokenizer.from_file(sys.argv[1])
    print(f"load {(time.process_time() - start) * 1e3:.0f} ms")
    data = open(sys.argv[2], "rb").read()
    repeats = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    print("pieces:", measure(tokenizer, cut(data), repeats))
    print("whole: ", measure(tokenizer, [data], repeats))


if __name__ == "__main__":
    main()
