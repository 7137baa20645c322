"""Reads the shipped task rows, which are kept compressed."""
import json
import lzma
import os

import datasets

FOLDER = os.path.join(os.path.dirname(__file__), "..", "..", "data", "tasks")


def rows(task):
    with lzma.open(os.path.join(FOLDER, task + ".jsonl.xz"), "rt") as file:
        return {"test": datasets.Dataset.from_list([json.loads(line) for line in file])}


def sql(**_):
    return rows("sql")


def json_records(**_):
    return rows("json")


def math(**_):
    return rows("math")


def prompt(doc):
    """One user message as the small model's chat template writes it."""
    return f"<|start|>user<|message|>{doc['q']}<|end|><|start|>assistant<|channel|>final<|message|>"


def process_results(doc, results):
    return {"exact_match": float(results[0].strip() == doc["a"])}
