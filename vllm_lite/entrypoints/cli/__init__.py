"""The command vllm-lite."""
