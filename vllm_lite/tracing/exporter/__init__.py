"""The exporter: a process of its own that follows the spools of a running engine and sends spans to an OTLP backend.

Process: the exporter, but `settings` and `launch`, which whoever builds the engine uses. Knows: spools, spans, OTLP. Does not
know: the engine. Only this process imports grpc.
Mirrors: nothing in vLLM; its engine exports from threads of the serving process.
"""
