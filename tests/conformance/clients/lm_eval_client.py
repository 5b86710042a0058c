"""lm-eval's `local-completions`: generated answers, and log-likelihoods of given ones."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

GENERATED = """
task: three_sums
dataset_path: json
dataset_kwargs:
  data_files: {questions}
test_split: train
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 8
  temperature: 0
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""
CHOSEN = """
task: three_sums
dataset_path: json
dataset_kwargs:
  data_files: {questions}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: '{{{{[answer, "a boat"]}}}}'
doc_to_target: 0
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""
QUESTIONS = [{"question": f"{n} + {n} =", "answer": str(2 * n)} for n in (1, 2, 3)]


def main(base_url: str) -> None:
    replies = [sample["resps"][0][0] for sample in samples_of(base_url, GENERATED, backend=None)]
    assert len(replies) == 3
    assert all(isinstance(reply, str) for reply in replies)

    chosen = samples_of(base_url, CHOSEN, backend="remote")
    assert len(chosen) == 3
    for sample in chosen:
        question, answer = sample["doc"]["question"], sample["doc"]["answer"]
        found = [float(logprob) for ((logprob, _),) in sample["resps"]]
        for logprob, choice in zip(found, (answer, "a boat"), strict=True):
            expected = log_likelihood(base_url, question, f" {choice}")
            assert math.isclose(logprob, expected, abs_tol=1e-6), (found, expected)
        assert found[0] > found[1], "a sum is more probable than a boat"


def log_likelihood(base_url: str, context: str, continuation: str) -> float:
    """Ask for the log-probability of a continuation without lm-eval."""
    body = {"prompt": context + continuation, "max_tokens": 0, "echo": True, "logprobs": 1}
    request = urllib.request.Request(
        f"{base_url}/completions",
        json.dumps({"model": "any", **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        scores = json.load(response)["choices"][0]["logprobs"]
    rows = zip(scores["text_offset"], scores["token_logprobs"], strict=True)
    return sum(logprob for offset, logprob in rows if offset >= len(context))


def samples_of(base_url: str, task: str, backend: str | None) -> list[dict[str, Any]]:
    """Run a task, and return what is logged of each question."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        questions = folder / "questions.jsonl"
        questions.write_text("\n".join(map(json.dumps, QUESTIONS)), encoding="utf-8")
        (folder / "task.yaml").write_text(task.format(questions=questions), encoding="utf-8")
        settings = {
            "model": "any",
            "base_url": f"{base_url}/completions",
            "num_concurrent": 2,
            "max_retries": 1,
            "tokenized_requests": backend is not None,
            "tokenizer_backend": backend,
        }
        command = [str(Path(sys.executable).parent / "lm_eval"), "--model", "local-completions"]
        command += ["--model_args", ",".join(f"{k}={v}" for k, v in settings.items())]
        command += ["--tasks", "three_sums", "--include_path", str(folder)]
        command += ["--output_path", str(folder / "out"), "--log_samples"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=folder)
        assert done.returncode == 0, done.stderr[-2000:]
        (samples,) = folder.glob("out/**/samples_*.jsonl")
        return [json.loads(line) for line in samples.read_text().splitlines()]


if __name__ == "__main__":
    main(sys.argv[1])
