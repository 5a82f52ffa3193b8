"""`vllm-lite trace check DIR`: do the spools hold together, and do the callers say the same?

Process: its own. Knows: options, how findings are printed. Does not know: the rules.
Mirrors: nothing in vLLM.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from vllm_lite.config.checks import refuse
from vllm_lite.console.figures import count
from vllm_lite.console.theme import DIM, ERROR, STRONG, Screen, new_console
from vllm_lite.entrypoints.cli import views
from vllm_lite.entrypoints.cli.callers import CLIENT_FILE
from vllm_lite.entrypoints.cli.command import Commands, add_command
from vllm_lite.tracing.check import ClientLine, Finding, check_run, engine_dead, reachable, read_lines
from vllm_lite.tracing.context import parse_traceparent
from vllm_lite.tracing.journey import Run

CHECK = """
check: check that a run's records hold together

vllm-lite trace check DIR [options]

Compare the spools of a run with themselves and with what the callers wrote.
Exits with 1 where a rule does not hold. All rules, where no flag names one.

examples:
  vllm-lite trace check RUN                             every rule
  vllm-lite trace check RUN --no-orphans --unique-ids   only these rules
  vllm-lite trace check RUN --against other.jsonl       their record elsewhere
  vllm-lite trace check RUN --reachable-from 00-...     from the caller's span
  vllm-lite trace check RUN --engine-dead               its engine was killed
"""
# Flag -> the rule's name and what it demands.
RULES = {
    "one-end": ("one end per request", "each request that entered ended exactly once"),
    "letters": ("letters add up", "puts == takes + staples + left"),
    "tokens": ("tokens add up", "tokens in letters, takes and usage, and at the callers"),
    "bags": ("bags add up", "slices and fates make up each bag"),
    "steps": ("steps and bags", "who got a letter took part in its step, of which all is known"),
    "aborts": ("aborts", "each is sent once and reaches the engine core"),
    "no-orphans": ("no orphans", "each span has its parent"),
    "unique-ids": ("unique span ids", "no two spans share an id"),
    "one-root": ("one root per trace", "each trace has one root"),
    "nesting": ("nesting", "children lie within their parents, to the nanosecond"),
    "links": ("links", "each link points at a span of the run"),
    "links-both-ways": ("links both ways", "steps link to their requests and back"),
    "nothing-lost": ("nothing lost", "no record is missing but the last of a killed process"),
}
SERVICES = ("frontend", "engine-core", "worker")
SHOWN = 5  # failures of one rule before the rest is counted


def add_check(commands: Commands) -> None:
    """Add `check` to the actions of `vllm-lite trace`."""
    parser = add_command(commands, check, CHECK)
    parser.add_argument("dir", metavar="DIR", help="the run directory")
    parser.add_argument("--against", metavar="FILE", help=f"the callers' own record; DIR/{CLIENT_FILE} where that exists")
    rules = parser.add_argument_group("rules")
    for flag, (_, demand) in RULES.items():
        rules.add_argument(f"--{flag}", action="append_const", dest="rules", const=flag, help=demand)
    more = parser.add_argument_group("rules for some runs only")
    more.add_argument(
        "--reachable-from", metavar="HEADER", help="the caller's span (a traceparent) leads to each of --services"
    )
    more.add_argument("--services", metavar="A,B", default=",".join(SERVICES), help="which (%(default)s)")
    more.add_argument("--engine-dead", action="store_true", help="who was in flight when the engine core was killed was told")


def check(args: argparse.Namespace) -> int:
    """Check it, print a table of counts and what broke a rule; 1 where one does not hold."""
    loaded = views.open_run(args.dir)
    client, torn = _client(args)
    special = _special(args, loaded)
    wanted = {RULES[flag][0] for flag in args.rules or (() if special else RULES)}
    findings = [finding for finding in check_run(loaded, client) if finding.rule in wanted] + special
    callers = "no caller's record" if client is None else count(len(client), "caller's record", "callers' records")
    if torn:
        callers += f" ({torn} torn)"
    facts = [count(len(loaded.requests), "request"), count(len(loaded.steps), "step"), count(len(loaded.bags), "bag"), callers]
    if died := sum(process.died for process in loaded.processes):
        facts.append(f"{count(died, 'process', 'processes')} died")
    _print(findings, facts)
    return 0 if all(finding.ok for finding in findings) else 1


def _special(args: argparse.Namespace, run: Run) -> list[Finding]:
    """The findings of the rules that hold for some runs only, where they were asked for."""
    findings = []
    if args.reachable_from is not None:
        caller, services = parse_traceparent(args.reachable_from), args.services.split(",")
        if caller is None:
            raise refuse("--reachable-from", args.reachable_from, "a traceparent: 00-<32 hex digits>-<16>-01")
        if not set(services) <= set(SERVICES):
            raise refuse("--services", args.services, f"among {', '.join(SERVICES)}, with commas between them")
        findings.append(reachable(run, caller, services))
    if args.engine_dead:
        findings.append(engine_dead(run))
    return findings


def _client(args: argparse.Namespace) -> tuple[Sequence[ClientLine] | None, int]:
    """What the callers wrote, and how many of their lines cannot be read."""
    path = Path(args.against or Path(args.dir) / CLIENT_FILE)
    if not path.exists() and args.against is None:
        return None, 0
    lines, torn = read_lines(path) if path.exists() else ([], 1)
    if torn and not lines and args.against is not None:
        raise refuse("--against", str(path), "a file of JSON lines, each with a request_id")
    return lines, torn


def _print(findings: Sequence[Finding], facts: Sequence[str]) -> None:
    console = new_console()
    screen = Screen.of(console)
    console.print(screen.title("check", *facts))
    console.print(screen.fit(Text("rule".ljust(22) + "checked".rjust(10) + "failed".rjust(8), DIM)))
    for finding in findings:
        line = Text().append(finding.rule.ljust(22)).append(f"{finding.checked:,}".rjust(10), DIM)
        console.print(screen.fit(line.append(f"{len(finding.failures):,}".rjust(8), STRONG if finding.ok else ERROR)))
        for sentence in finding.failures[:SHOWN]:
            console.print(Text(f"    {screen.printable(sentence)}", ERROR))
        if len(finding.failures) > SHOWN:
            console.print(Text(f"    {screen.glyphs.gap} {len(finding.failures) - SHOWN:,} more", DIM))
    broken = sum(not finding.ok for finding in findings)
    held = f"all {len(findings)} rules hold" if len(findings) > 1 else "the rule holds"
    verdict = f"{count(broken, 'rule')} of {len(findings)} broken" if broken else held
    console.print(Text(verdict, ERROR if broken else STRONG))
