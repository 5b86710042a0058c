"""lm-eval's `local-completions`: a task of generated answers, from a file of three questions."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

TASK = """
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
QUESTIONS = [{"question": f"{n} + {n} =", "answer": str(2 * n)} for n in (1, 2, 3)]


def main(base_url: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        questions = folder / "questions.jsonl"
        questions.write_text("\n".join(map(json.dumps, QUESTIONS)), encoding="utf-8")
        (folder / "task.yaml").write_text(TASK.format(questions=questions), encoding="utf-8")
        settings = {
            "model": "any",
            "base_url": f"{base_url}/completions",
            "num_concurrent": 2,
            "max_retries": 1,
            "tokenized_requests": False,
            "tokenizer_backend": None,
        }
        command = [str(Path(sys.executable).parent / "lm_eval"), "--model", "local-completions"]
        command += ["--model_args", ",".join(f"{k}={v}" for k, v in settings.items())]
        command += ["--tasks", "three_sums", "--include_path", str(folder)]
        command += ["--output_path", str(folder / "out"), "--log_samples"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=folder)
        assert done.returncode == 0, done.stderr[-2000:]
        (samples,) = folder.glob("out/**/samples_*.jsonl")
        replies = [json.loads(line)["resps"][0][0] for line in samples.read_text().splitlines()]
        assert len(replies) == 3
        assert all(isinstance(reply, str) for reply in replies)


if __name__ == "__main__":
    main(sys.argv[1])
