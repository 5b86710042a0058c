"""Writes a GGUF file's weights as another type, with llama.cpp's own quantizer.

    python benchmarks/quantize_with_llama_cpp.py IN.gguf OUT.gguf Q4_K_M

`expanded_gguf.py` writes the F16 file to start from. Which tensor gets which block format is
llama.cpp's choice. Needs the extra `bench`.
"""

from __future__ import annotations

import argparse
import ctypes

import gguf
import llama_cpp


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
    quantize(args.source, args.target, args.kind)


if __name__ == "__main__":
    main()
