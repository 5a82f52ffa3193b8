# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A stop string, seen from both sides
#
# A stop string is text. The engine core makes token ids, in a process of its own, and knows no text. The front end makes text
# and starts no step. So who ends an answer at its stop string, and what does the other side do until it hears of it?
#
# Think of the post office of the README: the clerk reads each letter while sorting. When the text is complete, the clerk
# gives the customer this last letter and sends a note to the truck: no more for this one. The truck may be on its way with
# another letter by then. The comparison stops where the note arrives: the engine core does not only stop, it takes the
# request's memory back at once.
#
# Everything here is real but the words: `tiny` is a Llama of random weights that is made on the fly, so it writes gibberish.
# It needs no download and no GPU, and the whole notebook takes some ten seconds.

# %%
import asyncio
import time
from statistics import median

from vllm_lite import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams
from vllm_lite.trace import record
from vllm_lite.tracing.spans import run_spans

BLOCKS = 64  # a small KV cache, so that one block more or less is seen
LETTERS = [ord(" "), *range(ord("a"), ord("z") + 1)]  # the tokens of `tiny` are bytes: let it write letters only

engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="tiny", max_model_len=512, num_gpu_blocks_override=BLOCKS))


async def ask(prompt, *, pause=0.0, **params):
    """The answer, letter by letter, and its last output. `pause`: seconds for which the caller then holds up the event loop."""
    settings = {"temperature": 0, "allowed_token_ids": LETTERS, "output_kind": RequestOutputKind.DELTA, "max_tokens": 24}
    pieces = []
    async for output in engine.generate(prompt, SamplingParams(**(settings | params)), request_id=prompt):
        pieces.append(output.outputs[0].text)
        if pause and len(pieces) == 2:
            time.sleep(pause)  # not asyncio.sleep: this is what a program must never do
    return pieces, output.outputs[0]


# %% [markdown]
# ## An answer without a stop string
#
# At temperature 0 the same prompt always gets the same tokens. So a stop string taken from the middle of this answer will be
# met when we ask again. Here a token is a byte: three characters are three letters in the mailbox.

# %%
pieces, last = await ask("Dear postman,")
answer = "".join(pieces)
stop = answer[10:13]
print(f"{answer!r} ended by {last.finish_reason}; we shall stop at {stop!r}")
assert len(answer) == 24
assert answer.find(stop) == 10

# %% [markdown]
# ## The same with a stop string
#
# A second request runs beside the first, so that the engine core has work before and after.

# %%
with record(engine) as run:
    (pieces, last), _ = await asyncio.gather(ask("Dear postman,", stop=stop), ask("A neighbour: ", max_tokens=64))
print(f"{pieces} ended by {last.finish_reason} at {last.stop_reason!r}")
assert ("".join(pieces), last.finish_reason, last.stop_reason) == (answer[:10], "stop", stop)
run

# %% [markdown]
# The last letters have no text: a character that may be the beginning of the stop string is held back until that is known.
#
# A is our request, B the neighbour. Each row of the mailroom is one bag: the letters of one step, and how long they were at
# each station. In the columns at the right, *put* is a letter laid into a mailbox. The row that begins with a dot is the
# abort. From then on the bags carry B's letter alone.
#
# In A's waterfall each station has a row, and `abort` is the last: from the front end's note to the moment when the core
# heard it.
#
# ## From the front end
#
# `OutputProcessor` found the stop string while it sorted a bag (S8). The caller gets its last letter at once; nobody waits
# for the other process. Only then is ABORT sent.

# %%
stopped, neighbour = (row.journey for row in run.requests)
(abort,) = stopped.aborts
found_in = stopped.letters[-1].bag
zero = found_in.process.wall(found_in.sort.t_received)


def since(process, t):
    """Microseconds since the bag with the end of the stop string came; clocks of several processes agree."""
    return (process.wall(t) - zero) / 1000


print(f"{0:8.0f} us  front end    bag {found_in.sort.bag} arrives")
print(f"{since(stopped.process, abort.t):8.0f} us  front end    ABORT is sent: {abort.reason}")
print(f"{since(stopped.process, stopped.close.t):8.0f} us  front end    the caller has all: {stopped.close.outcome}")
assert (abort.reason, stopped.close.outcome, stopped.close.stop_reason) == ("stop_string", "finished", stop)

# %% [markdown]
# To the caller this is an answer like any other: `finished`, not aborted.
#
# ## From the engine core
#
# The core did not wait. When ABORT came (S4), the next step was under way, and our request was in it. So the core computed at
# least part of a token that nobody wants. It gave the request up as soon as that step's forward pass was done, before looking
# at what it had made, and took the blocks back (S5).

# %%
(stay,) = stopped.stays
((core, receipt),) = stopped.abort_receipts
print(f"{since(core, receipt.t):8.0f} us  engine core  ABORT arrives")
print(f"{since(core, stay.leave.t):8.0f} us  engine core  the request leaves: it was {stay.leave.status}")


def blocks(step):
    """How many blocks of the KV cache were in use when `step` was planned."""
    return round(step.kv_usage * BLOCKS)


before = [step for step in run.steps if step.journey.schedule.t0 < stay.leave.t][-1]
after = next(step for step in run.steps if step.journey.schedule.t0 > stay.leave.t)
for name, step in (("last step before", before), ("first step after", after)):
    print(f"{name}: {step.requests} requests, {blocks(step)} blocks in use")
assert receipt.t <= stay.leave.t
assert (before.requests, after.requests) == (2, 1)
assert blocks(after) < blocks(before)

# %% [markdown]
# ## Two spans, one abort
#
# In a tracing backend the same moment is a pair of spans: a PRODUCER in the front end and, as its child, a CONSUMER in the
# engine core. The trace context went along in the ABORT message.

# %%
told, heard = (
    next(span for span in run_spans(run.journey) if span.name == name)
    for name in ("abort engine_core", "process engine_core.abort")
)
for span in (told, heard):
    print(f"{span.process.role:12} {span.kind.name:9} {span.name}")
assert (told.kind.name, heard.kind.name) == ("PRODUCER", "CONSUMER")
assert (heard.trace_id, heard.parent_span_id) == (told.trace_id, told.span_id)

# %% [markdown]
# ## The sums
#
# Every token that the core computed for A is in exactly one of three places: delivered, in a *late* letter (it was on the
# wire when the clerk had finished with A; the clerk drops it), or dropped in the core (made by the step that ran when ABORT
# came).


# %%
def sums(row):
    """(computed, delivered, late, dropped in the core) of a request whose prompt took one step."""
    late = sum(letter.tokens for letter in row.journey.late)
    return row.steps, row.output_tokens, late, row.steps - row.output_tokens - late


row = run.requests[0]
computed, delivered, late, dropped = sums(row)
print(f"{computed} computed = {delivered} delivered + {late} late + {dropped} dropped in the core")
print(f"{row.puts} puts = {row.takes} takes + {row.staples} staples + {row.left} left")
assert delivered == answer.find(stop) + len(stop)  # the stop string's own tokens were delivered, their text was not
assert dropped in (0, 1)
assert row.puts == row.takes + row.staples + row.left

# %% [markdown]
# ## Change one thing: a clerk that comes late
#
# Now A's caller holds up the event loop after its second letter, for as long as 100 steps take. All of the front end stands
# still. The engine core knows nothing of that and goes on. **Predict** before you run it: which of the three places fills up?

# %%
step_s = median(step.execute_s for step in run.steps)
with record(engine) as slow:
    pieces, last = await ask("Dear postman,", stop=stop, pause=100 * step_s, max_tokens=400)
    await ask("Who is next?", max_tokens=1)  # its bag comes after all that are late
assert "".join(pieces) == answer[:10]  # timing never changes the answer
computed, delivered, late, dropped = sums(slow.requests[0])
print(f"{computed} computed = {delivered} delivered + {late} late + {dropped} dropped in the core")
assert late > 0
assert dropped in (0, 1)
assert delivered == row.output_tokens
slow

# %% [markdown]
# While the front end stands still the bags lie on the wire (grey). Then the clerk opens them one after another: the letters up
# to the stop string are stapled together (*+1*, *+2*), all after it are late. They were made, sent and opened for nothing. That
# is the price of finding stop strings where the text is. It is small while the front end keeps up (a token or two), and grows
# with every millisecond that something blocks the event loop.
#
# ## Exercises
#
# Say what you expect, then run the cell: its asserts check the answer.
#
# **1.** A stop *token* is an id, and the core knows ids. Ask for `stop_token_ids` with the last character of the stop string
# in place of `stop`. How many aborts are sent, and how many tokens are computed that nobody wants?

# %%
with record(engine) as by_id:
    pieces, last = await ask("Dear postman,", stop_token_ids=[ord(stop[-1])])
row = by_id.requests[0]
print(f"{''.join(pieces)!r}: {len(row.journey.aborts)} aborts; {row.steps} computed, {row.output_tokens} delivered")
assert (last.finish_reason, last.stop_reason) == ("stop", ord(stop[-1]))
assert row.journey.aborts == []  # the core ended it itself, in the step that made the token
assert row.steps == row.output_tokens

# %% [markdown]
# **2.** Ask with `stop` again, and let `max_tokens` be exactly the tokens that the stop string needs. Both sides now end the
# answer with the same token: the core because of its length, the front end because of the text. Which reason does the caller
# see, and is there an ABORT?

# %%
with record(engine) as both:
    pieces, last = await ask("Dear postman,", stop=stop, max_tokens=delivered)
row = both.requests[0]
print(f"{''.join(pieces)!r} ended by {last.finish_reason}; {len(row.journey.aborts)} aborts")
assert "".join(pieces) == answer[:10]
assert last.finish_reason == "stop"  # the front end looks at the text before it believes the core
assert row.journey.aborts == []  # the core has ended it already: nobody is left to be told

# %% [markdown]
# **3.** With `include_stop_str_in_output=True` the stop string is part of the answer. Is anything held back then?

# %%
with record(engine) as included:
    pieces, last = await ask("Dear postman,", stop=stop, include_stop_str_in_output=True)
row = included.requests[0]
print(f"{''.join(pieces)!r} ended by {last.finish_reason}; {len(row.journey.aborts)} aborts")
assert "".join(pieces) == answer[:10] + stop
assert all(pieces)  # no: what will not be taken away again can go out at once
assert [sent.reason for sent in row.journey.aborts] == ["stop_string"]

# %%
engine.shutdown()

# %% [markdown]
# ## Where it is in the code
#
# `vllm-lite tour stop_string_abort` walks the same way through the code, station by station. In Visual Studio Code the
# CodeTour extension shows it in the editor.
