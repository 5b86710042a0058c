"""The checkpoint formats: GGUF files, and Hugging Face folders of safetensors."""
