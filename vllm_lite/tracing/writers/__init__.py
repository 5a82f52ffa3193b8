"""Files that other tools open: OTLP JSON lines, Jaeger JSON and Perfetto's.

Process: readers (`vllm-lite trace export`). Knows: spans and the formats. Does not know: spools.
Mirrors: nothing in vLLM.
"""
