"""What gpu_check.py measures: one function for each section. It takes a Scale and a working folder and returns plain values.

A section may read what an earlier one left in that folder (the machine's ceilings, a replay's time) and does without where
there is nothing. "bars" in a result are the figures that have something to reach: [what, value, bar, met].
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "triton", "transformers", "numpy", "msgspec", "pyzmq", "opentelemetry-sdk")
TRACEPARENT = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"  # of no span: makes a step time itself
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 320, "num_attention_heads": 4}


@dataclass(frozen=True)
class Scale:
    """How large everything is: FULL for a GPU, DRY to see on a CPU that every line runs (its figures mean nothing)."""

    device: str
    model: dict[str, Any]
    batches: tuple[int, ...]
    context: int
    steps: int
    answer: int
    copy_bytes: int
    matrix: int
    attention: tuple[tuple[int, int], ...]  # (sequences, tokens of each) for decodes
    prefill: tuple[int, int]
    backends: tuple[str, ...]
    cases: int | None = None

    @property
    def gpu(self) -> bool:
        return self.device == "cuda"


FULL = Scale(
    device="cuda",
    model=QWEN3,
    batches=(1, 64, 256),
    context=512,
    steps=40,
    answer=24,
    copy_bytes=4 << 30,
    matrix=8192,
    attention=((1, 16384), (64, 2048), (256, 512)),
    prefill=(8, 2048),
    backends=("triton", "torch_sdpa"),
)
DRY = Scale(
    device="cpu",
    model=QWEN3 | SMALL | {"num_hidden_layers": 1, "num_key_value_heads": 2, "head_dim": 16, "dtype": "float32"},
    batches=(1, 2),
    context=20,
    steps=2,
    answer=2,
    copy_bytes=1 << 20,
    matrix=64,
    attention=((2, 40),),
    prefill=(1, 20),
    backends=("torch_sdpa",),
    cases=2,
)


# ---- machine -----------------------------------------------------------------------------------------------------------------


def machine(scale: Scale, out: Path) -> dict[str, Any]:
    """Versions, and what the GPU can do at most: bytes copied (read and written) and bf16 multiplications, a second."""
    source = torch.randint(0, 255, (scale.copy_bytes // 2,), dtype=torch.uint8, device=scale.device)
    target = torch.empty_like(source)
    copy = seconds(scale, lambda: target.copy_(source))
    left, right = (torch.randn(scale.matrix, scale.matrix, device=scale.device, dtype=torch.bfloat16) for _ in range(2))
    product = seconds(scale, lambda: left @ right)
    found: dict[str, Any] = {name: package_version(name) for name in PACKAGES}
    found |= {"python": platform.python_version(), "gpu": torch.cuda.get_device_name() if scale.gpu else "none"}
    if scale.gpu:
        properties = torch.cuda.get_device_properties(0)
        found |= {"processors": properties.multi_processor_count, "memory": properties.total_memory, "cuda": torch.version.cuda}
    return found | {"bytes_per_s": scale.copy_bytes / copy, "flop_per_s": 2 * scale.matrix**3 / product}


def package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def seconds(scale: Scale, run: Callable[[], object], graph: bool = False, repeats: int = 20) -> float:
    """The median of `repeats` runs on the device; with `graph` a tenth of a replay of ten, so that launching costs nothing."""
    if not scale.gpu:
        started = time.perf_counter()
        run()
        return time.perf_counter() - started
    for _ in range(3):
        run()
    share = 1
    if graph:
        captured, share = torch.cuda.CUDAGraph(), 10
        with torch.cuda.graph(captured):
            for _ in range(share):
                run()
        run = captured.replay
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for before, after in events:
        before.record()
        run()
        after.record()
    torch.cuda.synchronize()
    return statistics.median(before.elapsed_time(after) for before, after in events) / share / 1e3


def ceilings(out: Path) -> tuple[float, float]:
    """Bytes and bf16 operations a second, as `machine` measured them; an H200's where it did not."""
    file = out / "machine.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    return found.get("bytes_per_s", 4.3e12), found.get("flop_per_s", 7.9e14)


# ---- attention ---------------------------------------------------------------------------------------------------------------


def kernels(scale: Scale, out: Path) -> dict[str, Any]:
    """Every case of attention_cases.py against the reference, with fresh numbers."""
    from benchmarks.attention_cases import BOUNDS, CASES, error

    errors = {}
    for case in CASES[: scale.cases]:
        errors[case.name] = error(case, torch.device(scale.device), seed=1)
    met = all(errors[case.name] < BOUNDS[case.dtype] for case in CASES[: scale.cases])
    worst = max(errors.values())
    return {"errors": errors, "bars": [["kernels agree with the reference, worst error", worst, "by dtype", met]]}


def attention(scale: Scale, out: Path) -> dict[str, Any]:
    """Decodes as a share of the copy bandwidth, a prefill against torch's own kernel; other tilings beside the default."""
    from benchmarks.attention_cases import Case
    from vllm_lite.worker.attention import triton_backend

    bandwidth, _ = ceilings(out)
    dtype = torch.bfloat16 if scale.gpu else torch.float32
    rows: list[dict[str, Any]] = []
    choose_tiling, choose_splits = triton_backend.choose_tiling, triton_backend.choose_splits
    for count, length in scale.attention:
        case = Case("", ((1, length - 1),) * count, (16, 8), (128, 128), dtype=dtype)
        moved = count * length * 8 * 128 * 2 * dtype.itemsize
        run, held = attention_call(case, scale)
        row = {"sequences": count, "tokens": length, "share_of_copy": moved / seconds(scale, run, graph=True) / bandwidth}
        others = {}
        for splits in (1, 2, 4, 8, 16, 32) if scale.gpu else (2,):
            triton_backend.choose_splits = lambda *_, splits=splits: splits
            held.resize(splits)
            others[f"splits={splits}"] = moved / seconds(scale, run, graph=True) / bandwidth
        triton_backend.choose_splits = choose_splits
        for keys, stages in ((32, 5), (64, 3), (64, 7), (128, 5)) if scale.gpu and count == 64 else ():
            triton_backend.choose_tiling = lambda *_, keys=keys, stages=stages: triton_backend.Tiling(16, keys, 4, stages)
            others[f"keys={keys} stages={stages}"] = moved / seconds(scale, run, graph=True) / bandwidth
        triton_backend.choose_tiling = choose_tiling
        rows.append(row | {"best_other": max(others, key=lambda name, others=others: others[name]), "others": others})
    best = max(row["share_of_copy"] for row in rows)
    bars = [["decode attention, share of copy bandwidth", best, 0.7, best >= 0.7]]
    return {"decode": rows, "prefill": prefill(scale, dtype), "bars": bars}


class Held:
    """A backend whose workspace can grow for more splits than it would choose."""

    def __init__(self, backend: Any, case: Any) -> None:
        self._backend, self._case = backend, case

    def resize(self, splits: int) -> None:
        floats = len(self._case.batch) * self._case.heads[0] * splits * (128 + 2)
        self._backend._workspace = torch.empty(floats, device=self._backend._workspace.device)


def attention_call(case: Any, scale: Scale) -> tuple[Callable[[], object], Held]:
    """One layer's attention over random numbers, to be called again and again."""
    from benchmarks.attention_cases import repeated_call, triton_backend

    device = torch.device(scale.device)
    counts = [new for new, _ in case.batch]
    backend = triton_backend(case, device, max_num_seqs=len(case.batch), max_num_tokens=sum(counts))
    return repeated_call(case, backend, device), Held(backend, case)


def prefill(scale: Scale, dtype: torch.dtype) -> dict[str, Any]:
    from benchmarks.attention_cases import Case
    from vllm_lite.worker.attention import triton_backend

    count, length = scale.prefill
    flop = count * 4 * 16 * 128 * length * length / 2
    run, _ = attention_call(Case("", ((length, 0),) * count, (16, 8), (128, 128), dtype=dtype), scale)
    query = torch.randn(count, 16, length, 128, device=scale.device, dtype=dtype)
    key = torch.randn(count, 8, length, 128, device=scale.device, dtype=dtype)
    attend = functools.partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True, enable_gqa=True)
    torch_s = seconds(scale, lambda: attend(query, key, key), graph=True)
    own_s, choose_tiling = seconds(scale, run, graph=True), triton_backend.choose_tiling
    others = {}
    for keys, warps, stages in ((64, 4, 3), (128, 8, 3), (64, 8, 4)) if scale.gpu else ():
        triton_backend.choose_tiling = lambda *_, t=(keys, warps, stages): triton_backend.Tiling(128, *t)
        others[f"keys={keys} warps={warps} stages={stages}"] = flop / seconds(scale, run, graph=True)
    triton_backend.choose_tiling = choose_tiling
    return {"flop_per_s": flop / own_s, "torch_flop_per_s": flop / torch_s, "ratio": torch_s / own_s, "others": others}


# ---- tokens ------------------------------------------------------------------------------------------------------------------


def tokens(scale: Scale, out: Path) -> dict[str, Any]:
    """Greedy answers in float32 against transformers' generate: with CUDA graphs, op by op, and on the reference backend."""
    found: dict[str, str] = {}
    for name in ("llama", "qwen3", "gemma2", "gpt_oss") if scale.gpu else ("llama",):
        folder = out / "models" / name
        try:
            prompts = [[(7 * n * n + n * length) % 300 for n in range(1, length + 1)] for length in (3, 17, 70, 33, 129)]
            expected = generated(random_model(name, folder, scale), prompts, scale)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
            continue
        variants = [(scale.backends[0], False)]
        if scale.gpu and name == "llama":
            variants += [("triton", True), ("torch_sdpa", True)]
        for backend, eager in variants:
            key = f"{name} {backend} {'eager' if eager else 'default'}"
            try:
                answers = engine_answers(folder, prompts, scale, attention_backend=backend, enforce_eager=eager)
                found[key] = "equal" if answers == expected else "differ"
            except Exception as error:
                found[key] = f"{type(error).__name__}: {error}"
    equal = sum(value == "equal" for value in found.values())
    return {"models": found, "bars": [["tokens equal generate's", f"{equal} of {len(found)}", "all", equal == len(found)]]}


def random_model(name: str, folder: Path, scale: Scale) -> Any:
    """A small model with weights large enough for answers that vary, saved to `folder`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    options: dict[str, Any] = SMALL | {"num_key_value_heads": 2, "initializer_range": 0.2, "max_position_embeddings": 512}
    options |= {"head_dim": 16, "pad_token_id": 0, "eos_token_id": 319, "bos_token_id": 1, "tie_word_embeddings": False}
    if name == "gemma2":
        options |= {"sliding_window": 24, "query_pre_attn_scalar": 16}
    if name == "gpt_oss":
        options |= {"sliding_window": 24, "num_local_experts": 4, "num_experts_per_tok": 2}
        options |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(name, **options), dtype=torch.float32, attn_implementation="eager"
    )
    model.save_pretrained(folder)
    return model.eval().to(scale.device)


def generated(model: Any, prompts: list[list[int]], scale: Scale) -> list[list[int]]:
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device=scale.device)
        options = {"max_new_tokens": scale.answer, "min_new_tokens": scale.answer, "do_sample": False, "eos_token_id": None}
        answer = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)
        answers.append(answer[0, len(prompt) :].tolist())
    return answers


def engine_answers(folder: Path, prompts: list[list[int]], scale: Scale, **options: Any) -> list[list[int]]:
    """The same from our engine core, all prompts at once, in chunks."""
    from vllm_lite import SamplingParams
    from vllm_lite.engine_core.core import EngineCore
    from vllm_lite.engine_core.executor.uniproc_executor import UniProcExecutor
    from vllm_lite.wire.messages import EngineCoreRequest

    config = engine_config(folder, scale, dtype="float32", max_num_seqs=8, max_num_batched_tokens=64, **options)
    core = EngineCore(config, UniProcExecutor)
    try:
        for number, prompt in enumerate(prompts):
            params = SamplingParams(temperature=0, max_tokens=scale.answer, ignore_eos=True)
            core.add_request(core.preprocess_add_request(EngineCoreRequest(str(number), prompt, None, params, None, 0.0)))
        answers: list[list[int]] = [[] for _ in prompts]
        while core.scheduler.has_requests():
            for bag in core.step().values():
                for row in bag.outputs:
                    answers[int(row.request_id)] += row.new_token_ids
    finally:
        core.shutdown()
    return answers


def engine_config(folder: Path, scale: Scale, **options: Any) -> Any:
    from vllm_lite import EngineArgs

    defaults = {"device": scale.device, "skip_tokenizer_init": True, "num_gpu_blocks_override": 200, "max_model_len": 256}
    return EngineArgs(model=str(folder), **(defaults | options)).create_engine_config()


# ---- decode steps ------------------------------------------------------------------------------------------------------------


def steps(scale: Scale, out: Path) -> dict[str, Any]:
    """Decode steps of the measured model, replayed and op by op, as a share of the roofline."""
    rows = [{"batch": batch} for batch in scale.batches]
    measure_steps(rows, "graph", scale, out)
    measure_steps(rows, "eager", scale, out, enforce_eager=True)
    ratio = rows[0]["eager_step_us"] / rows[0]["graph_step_us"]
    bars = [[f"graphs against eager at batch {rows[0]['batch']}", ratio, 3, ratio >= 3]]
    if syncs := rows[-1].get("graph_syncs"):
        bars.append(["waits for the device in a step, at most", max(syncs.values()), 1, max(syncs.values()) <= 1])
    return {"rows": rows, "bars": bars}


def compiled(scale: Scale, out: Path) -> dict[str, Any]:
    """The same with --compile."""
    rows = [{"batch": batch} for batch in scale.batches]
    measure_steps(rows, "compiled", scale, out, compile=scale.gpu)
    share, batch = rows[-1]["compiled_share_of_roofline"], rows[-1]["batch"]
    return {"rows": rows, "bars": [[f"compiled decode step at batch {batch}, share of roofline", share, 0.5, share >= 0.5]]}


def measure_steps(rows: list[dict[str, Any]], name: str, scale: Scale, out: Path, **options: Any) -> None:
    """Adds to each row: a step's wall and device time, and where there are graphs a replay's alone; microseconds."""
    from vllm_lite.wire.kv_cache_interface import KVCacheConfig
    from vllm_lite.worker.worker import Worker

    folder = model_folder(scale, out)
    length = scale.context + scale.steps + 8
    blocks = 1 + max(scale.batches) * -(-length // 16)
    config = engine_config(
        folder,
        scale,
        load_format="dummy",
        max_model_len=length,
        max_num_seqs=max(scale.batches),
        attention_backend="triton",
        **options,
    )
    begun = time.perf_counter()
    worker = Worker(config)
    specs = worker.get_kv_cache_specs()
    worker.initialize_from_config(KVCacheConfig(blocks, specs, []))
    started = time.perf_counter() - begun
    weights, kv_token = worker.get_info()["weights_bytes"], sum(spec.page_size_bytes for spec in specs.values()) / 16
    bandwidth, flop_rate = ceilings(out)
    for row in rows:
        batch = row["batch"]
        moved = weights + batch * scale.context * kv_token
        roofline = max(moved / bandwidth, batch * weights / flop_rate)  # two bytes and two operations to a weight
        wall, device = decode_times(worker, batch, scale)
        row |= {"roofline_us": roofline * 1e6, f"{name}_step_us": wall * 1e6, f"{name}_device_us": device and device * 1e6}
        row[f"{name}_start_s"] = started
        graphs, step_s = worker._runner._graphs, wall
        size = graphs.fitting(batch)
        if size is not None:
            step_s = seconds(scale, functools.partial(graphs.replay, size))
            row[f"{name}_replay_us"] = step_s * 1e6
        row[f"{name}_share_of_roofline"] = roofline / step_s
    if scale.gpu:
        rows[-1][f"{name}_syncs"] = synchronisations(worker, rows[-1]["batch"], scale)
    worker.shutdown()


def decode_times(worker: Any, batch: int, scale: Scale) -> tuple[float, float | None]:
    """Medians of a step's wall and device time in seconds, greedy."""
    from vllm_lite import SamplingParams

    walls, devices = [], []
    step = decode_steps(worker, batch, scale, SamplingParams(temperature=0))
    for _ in range(scale.steps):
        started = time.perf_counter()
        next(step)
        walls.append(time.perf_counter() - started)
        devices.append(worker._runner.clock.device_ns())
    step.close()
    timed = [device / 1e9 for device in devices if device is not None]
    return statistics.median(walls), statistics.median(timed) if timed else None


def synchronisations(worker: Any, batch: int, scale: Scale) -> dict[str, float]:
    """How often a step makes the host wait for the device, by torch's own count; the read of the tokens is one."""
    from vllm_lite import SamplingParams

    options: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "logit_bias": {5: 1.0}}
    options |= {"repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1, "seed": 1}
    found = {}
    for name, params in (("greedy", SamplingParams(temperature=0)), ("sampled", SamplingParams(**options))):
        step = decode_steps(worker, batch, scale, params)
        next(step)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            for _ in range(4):
                next(step)
            torch.cuda.set_sync_debug_mode("default")
        step.close()
        found[name] = sum("synchronizing" in str(warning.message) for warning in caught) / 4
    return found


def decode_steps(worker: Any, batch: int, scale: Scale, params: Any) -> Iterator[None]:
    """Steps of `batch` requests of about `context` tokens, one each time it is asked. What lies in their part of the cache is
    whatever it is: a step reads it all the same."""
    from vllm_lite.wire.step import CachedRequestData, NewRequestData, SchedulerOutput

    each = -(-(scale.context + scale.steps + 8) // 16)
    names, prompt = [str(number) for number in range(batch)], [7] * scale.context
    count = len(prompt)
    new = [
        NewRequestData(name, prompt, count, params, None, [list(range(1 + n * each, 1 + (n + 1) * each))], count - 1)
        for n, name in enumerate(names)
    ]
    cached, counts = CachedRequestData(), dict.fromkeys(names, 1)
    try:
        for step in itertools.count():
            worker.execute_model(SchedulerOutput(step, new, cached, counts, batch, step_trace=TRACEPARENT))
            worker.sample_tokens()
            yield
            new, cached = [], CachedRequestData(names, [None] * batch, [count + step] * batch, [step + 1] * batch)
    finally:
        worker.execute_model(SchedulerOutput(0, [], CachedRequestData(), {}, 0, finished_req_ids=names))


def model_folder(scale: Scale, out: Path) -> Path:
    folder = out / "models" / "measured"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(scale.model))
    return folder


# ---- the whole engine --------------------------------------------------------------------------------------------------------


def end_to_end(scale: Scale, out: Path) -> dict[str, Any]:
    """Tokens a second through AsyncLLM, all callers at work, against what replays alone would give."""
    file = out / "steps.json"
    steps = json.loads(file.read_text()).get("rows", []) if file.exists() else []
    replays = {row["batch"]: row.get("graph_replay_us") for row in steps}
    rows = []
    for batch, rate in asyncio.run(serve(scale, out, scale.batches[1:])).items():
        replay_us = replays.get(batch)
        rows.append({"batch": batch, "tokens_per_s": rate, "share_of_replay": replay_us and rate * replay_us / 1e6 / batch})
    return {"rows": rows}


async def serve(scale: Scale, out: Path, batches: tuple[int, ...]) -> dict[int, float]:
    """One engine; for each batch size, tokens a second between the last first token and the first end of as many requests."""
    from vllm_lite import AsyncEngineArgs, AsyncLLM

    answer = 4 * scale.steps
    prompt = max(scale.context - answer // 2, 1)  # so that the middle token sees about `context` tokens
    options: dict[str, Any] = {"device": scale.device, "skip_tokenizer_init": True, "load_format": "dummy", "trace_level": 0}
    options |= {"max_num_seqs": max(batches), "max_model_len": prompt + answer + 1, "max_num_batched_tokens": 8192}
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(model_folder(scale, out)), trace_dir=str(out / "untraced"), enable_prefix_caching=False, **options
        )
    )
    try:
        return {batch: await token_rate(engine, batch, prompt, answer) for batch in batches}
    finally:
        engine.shutdown()


async def token_rate(engine: Any, batch: int, prompt: int, answer: int) -> float:
    from vllm_lite import RequestOutputKind, SamplingParams

    firsts, ends, arrivals = [], [], []

    async def call(number: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
        request = {"prompt_token_ids": [(number + n) % 300 for n in range(prompt)]}
        outputs = engine.generate(request, params, f"{batch}-{number}")
        own = [(time.perf_counter(), len(output.outputs[0].token_ids)) async for output in outputs]
        firsts.append(own[0][0])
        ends.append(own[-1][0])
        arrivals.extend(own)

    await asyncio.gather(*(call(number) for number in range(batch)))
    start, end = max(firsts), min(ends)
    counted = sum(count for moment, count in arrivals if start < moment <= end)
    return counted / (end - start) if end > start else 0.0


def trace(scale: Scale, out: Path) -> dict[str, Any]:
    """A traced run of a small model: does each step's record hold the device's own time?"""
    from vllm_lite.tracing.journey.load import load_run

    folder, run = out / "models" / "traced", out / "trace"
    random_model("llama", folder, scale)
    asyncio.run(traced(folder, run, scale))
    works = [work for step in load_run(run).steps for _, work in step.works]
    times = [work.device_ns / 1e3 for work in works if work.device_ns is not None]
    wanted = len(works) if scale.gpu else 0
    return {
        "steps": len(works),
        "with_device_time": len(times),
        "median_device_us": statistics.median(times) if times else None,
        "bars": [["traced steps with device time", len(times), wanted, len(works) > 0 and len(times) >= 0.9 * wanted]],
    }


async def traced(folder: Path, run: Path, scale: Scale) -> None:
    from vllm_lite import AsyncEngineArgs, AsyncLLM, SamplingParams

    options = {"device": scale.device, "skip_tokenizer_init": True, "max_num_seqs": 4, "num_gpu_blocks_override": 100}
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(model=str(folder), trace_dir=str(run), trace_level=2, trace_keep=True, **options)
    )

    async def call(number: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        async for _ in engine.generate({"prompt_token_ids": [number + 1, 5, 9]}, params, str(number)):
            pass

    try:
        await asyncio.gather(*(call(number) for number in range(4)))
    finally:
        engine.shutdown()
