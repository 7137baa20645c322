"""OpenAI's gpt-oss evaluation client (PyPI gpt-oss) against a running server: its GPQA task with 200 threads, its
question file replaced by rows of the shipped sql task. Nothing may be lost, retried or refused.

usage: run_gpqa.py BASE_URL MODEL [responses|chat_completions]
"""
import contextlib
import io
import json
import lzma
import os
import random
import sys

import pandas

os.environ.setdefault("OPENAI_API_KEY", "none")


def question_file(count=200):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "data", "tasks")
    with lzma.open(os.path.join(folder, "sql.jsonl.xz"), "rt") as file:
        rows = [json.loads(line) for line in file][:count]
    pick = random.Random(1)
    out = []
    for row in rows:
        wrong = pick.sample([other["a"] for other in rows if other["a"] != row["a"]], 3)
        out.append({"Question": row["q"], "Correct Answer": row["a"], "Incorrect Answer 1": wrong[0],
                    "Incorrect Answer 2": wrong[1], "Incorrect Answer 3": wrong[2]})
    return pandas.DataFrame(out)


def main():
    base_url, model = sys.argv[1:3]
    kind = sys.argv[3] if len(sys.argv) > 3 else "responses"
    pandas.read_csv = lambda *_, **__: question_file()
    from gpt_oss.evals.chat_completions_sampler import ChatCompletionsSampler
    from gpt_oss.evals.gpqa_eval import GPQAEval
    from gpt_oss.evals.responses_sampler import ResponsesSampler

    sampler_class = ResponsesSampler if kind == "responses" else ChatCompletionsSampler
    sampler = sampler_class(model=model, reasoning_model=True, reasoning_effort="low", temperature=0.0,
                            base_url=base_url, max_tokens=131_072)
    answers, usages = [], []

    class Counting:
        def _pack_message(self, role, content):
            return sampler._pack_message(role, content)

        def __call__(self, messages):
            response = sampler(messages)
            answers.append(response.response_text)
            usages.append(response.response_metadata["usage"])
            return response

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        GPQAEval(n_repeats=1, n_threads=200)(Counting())
    lost = [line for line in said.getvalue().splitlines() if "Request Error" in line or "exception" in line]
    empty = sum(not answer for answer in answers)
    print(f"{kind}: {len(answers)} answers, {empty} empty, {len(lost)} errors or retries")
    for line in lost[:3]:
        print("  " + line[:300])
    sys.exit(0 if len(answers) == 200 and not lost and not empty and all(usages) else 1)


if __name__ == "__main__":
    main()
