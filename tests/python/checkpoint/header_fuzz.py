"""Random GGUF headers, sets of parts, Ollama manifests and hub caches: a model or one sentence.

`python -m tests.python.checkpoint.header_fuzz --cases 10000` draws that many of each part. A case
fails if it raises anything but an error of the package, takes a second of processor time, reaches
a file outside its folder, or needs 512 MB more than the process has at the start.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import struct
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sinkstream
from sinkstream.checkpoint.checkpoint import Checkpoint
from sinkstream.checkpoint.describe import describe
from sinkstream.checkpoint.stores import hub_cache, ollama, packages
from sinkstream.errors import SinkstreamError
from sinkstream.loading.open_checkpoint import open_checkpoint
from tests.python.checkpoint.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U8,
    U16,
    U32,
    U64,
    GgufBytes,
    GgufTensor,
    array,
    llama_bytes,
    scalar,
)
from tests.python.checkpoint.split_files import split
from tests.python.checkpoint.store_folders import COMMIT, KIND, write_blob

MOST_BYTES = 512 << 20
MOST_S = 1.0

Outcomes = Counter[str]

# ---- values ----

_NUMBERS = st.sampled_from(
    [0, 1, 2, 3, 5, 31, 32, 33, 255, 256, 2**16, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40,
     2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
)  # fmt: skip
_TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            "llama",
            "qwen2",
            "qwen3",
            "gpt2",
            "none",
            "default",
            "llama-bpe",
            "../x",
            "a\0b",
            "\n",
        ]
    ),
    st.text(max_size=20),
    st.integers(0, 3).map(lambda n: "x" * 10**n),
)
_KEYS = st.sampled_from([
    "general.architecture", "general.alignment", "general.file_type", "llama.block_count",
    "llama.context_length", "llama.embedding_length", "llama.feed_forward_length",
    "llama.attention.head_count", "llama.attention.head_count_kv", "llama.attention.key_length",
    "llama.attention.layer_norm_rms_epsilon", "llama.rope.dimension_count",
    "llama.rope.freq_base", "llama.rope.scaling.type", "llama.rope.scaling.factor",
    "llama.vocab_size", "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens",
    "tokenizer.ggml.token_type", "tokenizer.ggml.merges", "tokenizer.ggml.scores",
    "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.chat_template",
    "split.no", "split.count", "split.tensors.count", "general.sampling.temp", "odd",
])  # fmt: skip


@st.composite
def values(draw: st.DrawFn) -> tuple[int, bytes]:
    """Draw a value of a key: its type and its bytes, which may not agree."""
    kind = draw(st.sampled_from([U8, U16, U32, U64, I32, F32, BOOL, STRING, ARRAY, 13, 2**32 - 1]))
    if kind == STRING:
        return kind, scalar(STRING, draw(_TEXTS))
    if kind == ARRAY:
        if draw(st.booleans()):
            return kind, array(STRING, draw(st.lists(_TEXTS, max_size=8)))
        inner, count = draw(st.sampled_from([U8, F32, STRING, ARRAY, 99])), draw(_NUMBERS)
        return kind, struct.pack("<IQ", inner, count) + draw(st.binary(max_size=32))
    if kind == F32:
        return kind, struct.pack("<f", draw(st.floats(width=32)))
    width = {U8: 1, U16: 2, U32: 4, U64: 8, I32: 4, BOOL: 1}.get(kind, 4)
    return kind, (draw(_NUMBERS) % 2 ** (8 * width)).to_bytes(width, "little")


# ---- GGUF ----


@st.composite
def gguf_files(draw: st.DrawFn) -> bytes:
    """Draw a file: some fields of a good one are odd, some bytes of its header may be."""
    file = llama_bytes(layers=draw(st.integers(1, 2)))
    for _ in range(draw(st.sampled_from([0, 1, 1, 3]))):
        name = draw(_KEYS)
        file.keys = [key for key in file.keys if key[0] != name or draw(st.integers(0, 9)) == 0]
        kind, encoded = draw(values())
        file.keys.append((name, kind, encoded))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        _change_tensor(draw, file)
    if draw(st.integers(0, 9)) == 9:
        file.tensor_count, file.key_count = draw(_NUMBERS), draw(_NUMBERS)
    file.version = draw(st.sampled_from([3, 3, 3, 3, 2, 2, 4]))
    content = bytearray(file.build())
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
        _change_bytes(draw, content, len(file.header()))
    if draw(st.integers(0, 9)) == 9:
        del content[draw(st.integers(0, len(content))) :]
    return bytes(content)


def _change_tensor(draw: st.DrawFn, file: GgufBytes) -> None:
    tensor = file.tensors[draw(st.integers(0, len(file.tensors) - 1))]
    match draw(st.integers(0, 5)):
        case 0:
            tensor.sizes = tuple(draw(st.lists(_NUMBERS, min_size=0, max_size=5)))
        case 1:
            tensor.block_type = draw(st.integers(0, 50))
        case 2:
            tensor.offset = draw(_NUMBERS)
        case 3:
            tensor.name = draw(_TEXTS)
        case 4:
            file.tensors.append(GgufTensor(tensor.name, tensor.sizes, tensor.content))
        case _:
            file.tensors.remove(tensor)


def _change_bytes(draw: st.DrawFn, content: bytearray, header: int) -> None:
    width = draw(st.sampled_from([1, 4, 8]))
    at = draw(st.integers(0, max(0, min(header, len(content)) - width)))
    content[at : at + width] = (draw(_NUMBERS) % 2 ** (8 * width)).to_bytes(width, "little")


def check_gguf(folder: Path, data: st.DataObject) -> str:
    """Open a random file."""
    path = folder / "m.gguf"
    path.write_bytes(data.draw(gguf_files()))
    return _open(path, folder)


def _open(path: Path, folder: Path) -> str:
    """Describe, list and open a model; each of its tensors must lie in its file."""
    describe(path)
    rows = {row.path: row.problem for row in sinkstream.list_models(folder)}
    try:
        checkpoint = open_checkpoint(path)
    except SinkstreamError as error:
        said = str(error)
    else:
        _read_all(checkpoint, folder)
        said = ""
    assert said == "" or said.startswith("load: ")
    assert said != "" or rows[checkpoint.path] is None  # it is listed as one that loads
    return "refused" if said else "opened"


def _read_all(checkpoint: Checkpoint, folder: Path) -> None:
    try:
        for tensor in checkpoint.tensors:
            checkpoint.source.read_rows(tensor, 0, tensor.slot.rows)
            descriptor = checkpoint.source.extents(tensor)[0].descriptor
            inside = Path(f"/proc/self/fd/{descriptor}").readlink()
            assert inside.is_relative_to(folder.resolve()), inside
    finally:
        checkpoint.source.close()


# ---- parts ----


def check_parts(folder: Path, data: st.DataObject) -> str:
    """Open a random set of parts."""
    draw = data.draw
    count = draw(st.integers(2, 4))
    parts = split(llama_bytes(), count, first_is_empty=draw(st.booleans()))
    named = draw(st.sampled_from([count, count, count, count + 1, 1, 0, 2000, 99_999]))
    order = draw(st.sampled_from([list(range(count)), draw(st.permutations(range(count)))]))
    for part in parts:
        if draw(st.integers(0, 7)) == 0:
            name = draw(st.sampled_from(["split.no", "split.count", "split.tensors.count"]))
            kind, encoded = draw(values())
            part.keys = [key for key in part.keys if key[0] != name]
            part.keys.append((name, kind, encoded))
        if part.tensors and draw(st.integers(0, 7)) == 0:
            _change_tensor(draw, part)
    for number, index in enumerate(order, 1):
        content = bytearray(parts[index].build())
        if draw(st.integers(0, 9)) == 0:
            _change_bytes(draw, content, len(content))
        if draw(st.integers(0, 9)) == 0:
            del content[draw(st.integers(0, len(content))) :]
        if draw(st.integers(0, 9)) > 0:
            (folder / f"m-{number:05}-of-{named:05}.gguf").write_bytes(content)
    files = sorted(folder.glob("*.gguf"))
    return _open(draw(st.sampled_from(files)), folder) if files else "refused"


# ---- Ollama ----

# Some would be paths of a model outside, if a digest were taken for a path.
_DIGESTS = st.one_of(
    st.sampled_from(["sha256:" + "0" * 64, "sha256:../../x", "", "sha256-" + "f" * 64, "\0"]),
    st.sampled_from(["{outside}", "../../outside.gguf", "sha256:{outside}"]),
    _TEXTS,
)
_KINDS = st.sampled_from(
    [KIND + name for name in ("model", "adapter", "projector", "template", "tensor", "model; a=b")]
)
_JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_TEXTS, inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def manifests(draw: st.DrawFn, digest: str, size: int, depth: int = 1) -> Any:
    """Draw a manifest that may name the blob `digest`."""
    if draw(st.integers(0, 9)) == 9:
        return draw(_JSON)
    good = {"mediaType": KIND + "model", "digest": digest, "size": size}
    other = st.builds(lambda digest: {**good, "digest": digest}, _DIGESTS)
    odd = st.fixed_dictionaries({"mediaType": _KINDS, "digest": _DIGESTS, "size": _JSON})
    layers = st.one_of(
        st.just([good]),
        other.map(lambda layer: [layer]),
        st.lists(st.one_of(st.just(good), other, odd, _JSON), max_size=3),
    )
    found: dict[str, Any] = {"layers": draw(layers)}
    if depth > 0 and draw(st.integers(0, 3)) == 0:
        inner = manifests(digest, size, depth - 1)
        found["mediaType"] = "application/vnd.ollama.manifest.list.v2+json"
        found["manifests"] = draw(st.one_of(_JSON, st.lists(inner, max_size=3)))
    if draw(st.integers(0, 5)) == 0:
        found[draw(st.sampled_from(["runner", "digest", "layers", "mediaType"]))] = draw(_JSON)
    return found


def check_ollama(folder: Path, data: st.DataObject) -> str:
    """Find a model by a random manifest, under a random name."""
    draw = data.draw
    root = folder / "models"
    digest, size = write_blob(root, llama_bytes().build())
    tag = draw(st.sampled_from(["latest", "1b", "b..", "a b", "\x1b[31m"]))
    path = root / draw(st.sampled_from(["manifests", "manifests-v2"]))
    path = path / "registry.ollama.ai" / "library" / "m" / tag
    path.parent.mkdir(parents=True)
    content = json.dumps(draw(manifests(digest, size))).encode()
    if draw(st.integers(0, 7)) == 0:
        content = content[: draw(st.integers(0, len(content)))] + draw(st.binary(max_size=8))
    outside = folder / "outside.gguf"
    llama_bytes().write(outside)
    path.write_bytes(content.replace(b"{outside}", str(outside).encode()))
    os.environ["OLLAMA_MODELS"] = str(root)
    (row,) = [row for row in sinkstream.list_models() if row.store == "ollama"]
    name = draw(st.sampled_from([row.name] * 3 + [f"ollama:{draw(_TEXTS)}"]))
    try:
        found = ollama.locate(name)
    except SinkstreamError as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert name != row.name or row.problem == said
        return "refused"
    if found is None:
        return "unknown"
    assert found.parent == root / "blobs"
    return "opened" if row.loads else "refused"


# ---- the Hugging Face cache ----


def check_hub(folder: Path, data: st.DataObject) -> str:
    """Find a repository by a random revision in a cache with random files."""
    draw = data.draw
    repository = folder / draw(st.sampled_from(["models--o--n", "models--o--n", "models--n", "x"]))
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name in draw(
        st.lists(st.sampled_from(["a.gguf", "b.gguf", "config.json", "x"]), max_size=3)
    ):
        (snapshot / name).write_bytes(llama_bytes().build())
    (repository / "refs").mkdir()
    ref = draw(st.one_of(st.just(COMMIT), st.just(COMMIT), _TEXTS, st.just("../../x")))
    (repository / "refs" / "main").write_text(ref, encoding="utf-8")
    os.environ["HF_HUB_CACHE"] = str(folder)
    rows = [row for row in sinkstream.list_models() if row.store == "huggingface"]
    revision = draw(st.one_of(st.none(), st.just(COMMIT), _TEXTS))
    for name in [*(row.name for row in rows), "o/n", "o/n/../x.gguf", draw(_TEXTS)]:
        try:
            found = hub_cache.locate(name, revision)
        except SinkstreamError:
            continue
        assert found is None or found.resolve().is_relative_to(folder.resolve())
    return "opened" if any(row.loads for row in rows) else "refused"


# ---- running ----

PARTS: dict[str, Callable[[Path, st.DataObject], str]] = {
    "gguf": check_gguf,
    "parts": check_parts,
    "ollama": check_ollama,
    "hub": check_hub,
}


def run(part: str, cases: int, seed: int) -> Outcomes:
    """Draw the cases of a part; raise what the first failing one, made small, raises."""
    outcomes: Outcomes = Counter()
    check = PARTS[part]

    @hypothesis.seed(seed)
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(st.data())
    def each(data: st.DataObject) -> None:
        folder = Path(tempfile.mkdtemp(dir=root))
        begin = time.process_time()
        try:
            outcomes[check(folder, data)] += 1
        finally:
            shutil.rmtree(folder)
        spent = time.process_time() - begin
        assert spent < MOST_S, f"{spent:.1f} s"

    with tempfile.TemporaryDirectory() as root, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        each()
    return outcomes


def limit_memory() -> None:
    """Refuse this process more than 512 MB in addition to what it has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, -1))


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw random files; a case that fails is raised."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=PARTS)
    options = parser.parse_args(arguments)
    for name in ("HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS", "SINKSTREAM_MODELS"):
        os.environ.pop(name, None)
    os.environ["HOME"] = "/nonexistent"
    packages.PACKAGES.clear()  # listing SmolLM2 each time would take longer than the case
    limit_memory()
    for part in PARTS if options.part is None else [options.part]:
        print(part, dict(sorted(run(part, options.cases, options.seed).items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
