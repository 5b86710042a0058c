"""Writes GGUF files byte by byte, with any field wrong on purpose."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_LETTERS = {
    U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q",
    I64: "q", F64: "d",
}  # fmt: skip


def text(value: str | bytes) -> bytes:
    encoded = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(encoded)) + encoded


def scalar(kind: int, value: Any) -> bytes:
    return text(value) if kind == STRING else struct.pack("<" + _LETTERS[kind], value)


def array(kind: int, values: list[Any]) -> bytes:
    head = struct.pack("<IQ", kind, len(values))
    return head + b"".join(scalar(kind, value) for value in values)


@dataclass
class GgufTensor:
    """One tensor as it will be declared."""

    name: str | bytes
    sizes: tuple[int, ...]  # innermost first
    content: bytes
    block_type: int = 0
    offset: int | None = None  # None: directly after the previous tensor


@dataclass
class GgufBytes:
    """A GGUF file; every field may be set to a value that no writer would write."""

    keys: list[tuple[str | bytes, int, bytes]] = field(default_factory=list)
    """Name, value type, encoded value."""
    tensors: list[GgufTensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    key_count: int | None = None
    alignment: int = 32
    tail: bytes = b""

    def add(self, name: str | bytes, kind: int, value: Any) -> GgufBytes:
        self.keys.append((name, kind, scalar(kind, value)))
        return self

    def add_array(self, name: str, kind: int, values: list[Any]) -> GgufBytes:
        self.keys.append((name, ARRAY, array(kind, values)))
        return self

    def add_tensor(self, name: str | bytes, sizes: tuple[int, ...], content: bytes) -> GgufBytes:
        self.tensors.append(GgufTensor(name, sizes, content))
        return self

    def header(self) -> bytes:
        tensor_count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        key_count = len(self.keys) if self.key_count is None else self.key_count
        out = bytearray(self.magic + struct.pack("<IQQ", self.version, tensor_count, key_count))
        for name, kind, value in self.keys:
            out += text(name) + struct.pack("<I", kind) + value
        offset = 0
        for tensor in self.tensors:
            out += text(tensor.name) + struct.pack("<I", len(tensor.sizes))
            out += b"".join(struct.pack("<Q", size) for size in tensor.sizes)
            declared = offset if tensor.offset is None else tensor.offset
            out += struct.pack("<IQ", tensor.block_type, declared)
            offset += len(self._padded(tensor.content))
        return bytes(out)

    def build(self) -> bytes:
        body = b"".join(self._padded(tensor.content) for tensor in self.tensors)
        return self._padded(self.header()) + body + self.tail

    def write(self, path: Path) -> Path:
        path.write_bytes(self.build())
        return path

    def _padded(self, content: bytes) -> bytes:
        return content + bytes(-len(content) % self.alignment)


def llama_bytes(*, layers: int = 1, hidden: int = 32, vocab: int = 5) -> GgufBytes:
    """Return a complete llama file without a tokenizer: two heads, one KV head, F32 zeros."""
    file = GgufBytes().add("general.architecture", STRING, "llama")
    for name, value in {
        "block_count": layers,
        "context_length": 64,
        "embedding_length": hidden,
        "feed_forward_length": 48,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "vocab_size": vocab,
    }.items():
        file.add("llama." + name, U32, value)
    file.add("llama.attention.layer_norm_rms_epsilon", F32, 1e-5)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (hidden, vocab)}
    for layer in range(layers):
        at = f"blk.{layer}."
        shapes |= {
            at + "attn_norm.weight": (hidden,),
            at + "attn_q.weight": (hidden, hidden),
            at + "attn_k.weight": (hidden, hidden // 2),
            at + "attn_v.weight": (hidden, hidden // 2),
            at + "attn_output.weight": (hidden, hidden),
            at + "ffn_norm.weight": (hidden,),
            at + "ffn_gate.weight": (hidden, 48),
            at + "ffn_up.weight": (hidden, 48),
            at + "ffn_down.weight": (48, hidden),
        }
    shapes["output_norm.weight"] = (hidden,)
    for name, sizes in shapes.items():
        count = 1
        for size in sizes:
            count *= size
        file.add_tensor(name, sizes, bytes(4 * count))
    return file
