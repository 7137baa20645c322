#!/usr/bin/env python3
"""Writes the golden files of tests/text/chat_template_test.cc.

  tests/data/chat-template-golden.json.xz    conversations rendered by Transformers' apply_chat_template
  tests/data/jinja-golden.json.xz            small templates rendered in the same environment

Needs transformers and jinja2; their versions are written into the files. The clock stands at 2025-08-09 10:11:12.
"""

import datetime
import json
import lzma
import pathlib

import jinja2
import tokenizers
import transformers
from transformers.utils import chat_template_utils

from template_golden_cases import CONVERSATIONS, EXPRESSIONS, EXPRESSION_VARIABLES

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2025, 8, 9, 10, 11, 12)


chat_template_utils.datetime = FixedClock


def describe(error):
    return {"type": type(error).__name__, "message": str(error)}


def render(template, case):
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0}, unk_token="<unk>")), **TOKENS
    )
    tokenizer.chat_template = template
    try:
        text = tokenizer.apply_chat_template(
            case["messages"],
            tools=case["tools"],
            add_generation_prompt=case["add_generation_prompt"],
            tokenize=False,
            **case["variables"],
        )
    except Exception as error:  # whatever the template's code raises is what the golden file records
        return {"error": describe(error)}
    return {"text": text}


def write(path, value):
    text = json.dumps(value, ensure_ascii=False, indent=0, separators=(",", ":"))
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{path}: {path.stat().st_size} bytes")


def conversations():
    files = sorted((DATA / "chat-templates").glob("*.jinja"))
    templates = {str(file.relative_to(ROOT)): file.read_text() for file in files}
    tiny = ROOT / "models" / "tiny-gpt-oss-mxfp4" / "chat_template.jinja"
    templates[str(tiny.relative_to(ROOT))] = tiny.read_text()
    qwen3 = DATA / "tokenizers" / "qwen3" / "tokenizer_config.json"
    templates[str(qwen3.relative_to(ROOT))] = json.loads(qwen3.read_text())["chat_template"]
    results = {name: [render(source, case) for case in CONVERSATIONS] for name, source in templates.items()}
    for name, rendered in results.items():
        print(f"{name}: {sum('text' in r for r in rendered)} texts, {sum('error' in r for r in rendered)} errors")
    return {"cases": CONVERSATIONS, "tokens": TOKENS, "results": results}


def expressions():
    out = []
    for source in EXPRESSIONS:
        try:
            template = chat_template_utils._compile_jinja_template(source)
            text = template.render(**EXPRESSION_VARIABLES)
            if " at 0x" not in text:  # an address tells nothing
                out.append({"source": source, "text": text})
        except Exception as error:
            out.append({"source": source, "error": describe(error)})
    print(f"{len(out)} small templates, {sum('error' in r for r in out)} errors")
    return {"variables": EXPRESSION_VARIABLES, "cases": out}


if __name__ == "__main__":
    versions = {"jinja2": jinja2.__version__, "transformers": transformers.__version__}
    write(DATA / "chat-template-golden.json.xz", {"made_with": versions, **conversations()})
    write(DATA / "jinja-golden.json.xz", {"made_with": versions, **expressions()})
