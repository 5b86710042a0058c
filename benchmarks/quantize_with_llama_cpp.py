"""Writes a GGUF file's weights as another type, with llama.cpp's own quantizer.

    python benchmarks/quantize_with_llama_cpp.py IN.gguf OUT.gguf Q4_K_M

The type F16 expands a quantized file. Which tensor gets which block format is llama.cpp's choice.
Needs the extra `bench`.
"""

from __future__ import annotations

import argparse
import ctypes

import gguf
import llama_cpp
import numpy as np


def expand(source: str, target: str) -> None:
    """Write a file's matrices as F16 and its vectors as F32; copy the metadata."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    own = {"general.architecture", "general.file_type"}  # the writer's, or wrong afterwards
    for field in reader.fields.values():
        if field.name not in own and not field.name.startswith("GGUF."):
            kind = field.types[0]
            items = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=items)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        shape = [int(size) for size in reversed(tensor.shape)]
        kind = np.float32 if len(shape) == 1 else np.float16
        writer.add_tensor(tensor.name, numbers.reshape(shape).astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(source: str, target: str, kind: str) -> None:
    """Write a file of this type, for example Q4_K_M."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = int(gguf.LlamaFileType[f"MOSTLY_{kind}"])
    params.allow_requantize = True
    code = llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
    if code != 0:
        raise SystemExit(f"quantize_with_llama_cpp: llama.cpp returned {code}.")


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("kind")
    args = parser.parse_args()
    if args.kind == "F16":
        expand(args.source, args.target)
    else:
        quantize(args.source, args.target, args.kind)


if __name__ == "__main__":
    main()
