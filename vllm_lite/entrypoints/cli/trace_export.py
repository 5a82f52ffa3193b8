"""`vllm-lite trace export DIR`: a run as files, page or picture, or sent to a collector; `trace doctor`: does one take spans?

Process: its own. Knows: options, the console's views, what writes and sends spans. Does not know: formats, networks.
Mirrors: nothing in vLLM.
"""

import argparse
import os
import re
import sys
from html import escape
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from vllm_lite.config.checks import refuse
from vllm_lite.console.figures import count
from vllm_lite.console.theme import ERROR, STRONG, Screen, new_console, new_paper
from vllm_lite.entrypoints.cli import views
from vllm_lite.entrypoints.cli.command import Commands, add_command
from vllm_lite.exceptions import VLLMValidationError
from vllm_lite.tracing.export import FORMATS, send, write_files
from vllm_lite.tracing.exporter.doctor import examine
from vllm_lite.tracing.exporter.settings import read_settings
from vllm_lite.tracing.journey import Run

EXPORT = """
export: write a run for other tools, or send it to a collector

vllm-lite trace export DIR [options]

Write the spans of a run to files, draw its views, or send it to a collector.
Any number of options at once; files that exist are written anew.

examples:
  vllm-lite trace export RUN --jaeger run.json      for Jaeger's upload tab
  vllm-lite trace export RUN --perfetto run.json    for ui.perfetto.dev
  vllm-lite trace export RUN --otlp run.jsonl.gz    as collectors write files
  vllm-lite trace export RUN --html run.html --all  the screens, every bag
  vllm-lite trace export RUN --otlp-traces-endpoint http://localhost:4317
"""
DOCTOR = """
doctor: send one span to a collector and say what came of it

vllm-lite trace doctor [options]

Send one span to a collector, say what came of it, and what to change where it
did not arrive (exit code 1). OTEL_* variables count as they do for an engine.

examples:
  vllm-lite trace doctor --otlp-traces-endpoint http://localhost:4317
  vllm-lite trace doctor             the collector that OTEL_* variables name
"""
HELP = {
    "otlp": "OTLP JSON, one request a line; compressed where the name ends in .gz",
    "jaeger": "Jaeger's own JSON, which its UI opens without a server",
    "perfetto": "Chrome's trace JSON: rows of processes and requests, letters as arrows",
}
PAGE = """<!DOCTYPE html>
<meta charset="utf-8"><title>{title}</title>
<style>* {{ color: #c5c8c6; background: #292929; font-family: Menlo, 'DejaVu Sans Mono', monospace }}</style>
"""
SECTION = "<details open><summary>{name}</summary><pre>{{code}}</pre></details>\n"  # a view, to be folded away
# Rich's picture would have its viewer fetch letter shapes from the network.
FONT_FACE = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def add_export(commands: Commands) -> None:
    """Add `export` to the actions of `vllm-lite trace`."""
    parser = add_command(commands, export, EXPORT)
    parser.add_argument("dir", metavar="DIR", help="the run directory, or a file of OTLP JSON lines")
    for name in FORMATS:
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=HELP[name])
    parser.add_argument("--html", type=Path, metavar="FILE", help="what `trace show` prints, as a page")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="the same as a picture")
    parser.add_argument("--all", action="store_true", help="leave nothing out of the page and the picture")
    parser.add_argument("--otlp-traces-endpoint", metavar="URL", help="send the spans to this collector")


def add_doctor(commands: Commands) -> None:
    """Add `doctor` to the actions of `vllm-lite trace`."""
    parser = add_command(commands, doctor, DOCTOR)
    parser.add_argument("--otlp-traces-endpoint", metavar="URL", help="the collector; that of OTEL_* variables where absent")


def export(args: argparse.Namespace) -> int:
    """Write and send what was asked for; 1 where the collector did not take all. Raises VLLMValidationError for no target."""
    targets = {name: path for name in (*FORMATS, "html", "svg") if (path := getattr(args, name)) is not None}
    if not (targets or args.otlp_traces_endpoint):
        raise VLLMValidationError("give one of --html, --svg, --jaeger, --perfetto, --otlp or --otlp-traces-endpoint")
    path, console = Path(args.dir), new_console()
    source = views.open_run(args.dir) if path.is_dir() or not path.exists() else path.resolve()
    _check_targets(targets)
    files = {name: path for name, path in targets.items() if name in FORMATS}
    try:
        for name, number in write_files(source, files, os.environ).items():
            console.print(Text(f"{count(number, 'span')} in {files[name]}"), soft_wrap=True)
        _draw(args, source, console)
        return _send(source, args.otlp_traces_endpoint, console) if args.otlp_traces_endpoint else 0
    except ValueError as error:
        if path.is_dir() or isinstance(error, VLLMValidationError):
            raise
        raise refuse("DIR", args.dir, f"a run directory, or a file of OTLP JSON lines ({error})") from None


def _check_targets(targets: dict[str, Path]) -> None:
    """Refuse a file that cannot be written or is another option's too, by its option and before any work."""
    taken: dict[Path, str] = {}
    for name, path in targets.items():
        if (other := taken.setdefault(path.resolve(), name)) != name:
            raise refuse(f"--{name}", str(path), f"another file than --{other} is")
        is_new = not path.exists()
        try:
            path.open("ab").close()
            if is_new:
                path.unlink()
        except OSError as error:
            raise refuse(f"--{name}", str(path), f"a file that can be written here ({error.strerror})") from None


def _draw(args: argparse.Namespace, source: Run | Path, console: Console) -> None:
    """The views as a page and as a picture, in colour whatever this terminal can do."""
    if not (args.html or args.svg):
        return
    paper, title = new_paper(), f"vllm-lite trace show {args.dir}"
    run = views.open_run(args.dir) if isinstance(source, Path) else source
    if args.html:
        page = PAGE.format(title=escape(title))
        for name in views.VIEWS:
            views.show(paper, run, [name], everything=args.all)
            page += paper.export_html(theme=SVG_EXPORT_THEME, code_format=SECTION.format(name=name), inline_styles=True)
        args.html.write_text(page, encoding="utf-8")
        console.print(Text(f"a page in {args.html}"), soft_wrap=True)
    if args.svg:
        views.show(paper, run, everything=args.all)
        picture = paper.export_svg(title=title, theme=SVG_EXPORT_THEME)
        args.svg.write_text(FONT_FACE.sub("", picture), encoding="utf-8")
        console.print(Text(f"a picture in {args.svg}"), soft_wrap=True)


def _send(source: Run | Path, endpoint: str, console: Console) -> int:
    settings = read_settings(os.environ, endpoint)
    if not settings.enabled:
        raise refuse("--otlp-traces-endpoint", endpoint, "absent where OTEL_SDK_DISABLED or OTEL_TRACES_EXPORTER switch it off")
    sent = send(source, settings, os.environ)
    console.print(Text(f"{count(sent.arrived, 'span')} sent to {settings.endpoint}"), soft_wrap=True)
    if sent.left:
        told = f"{count(sent.left, 'span')} did not arrive ({sent.answer}); `vllm-lite trace doctor` says why"
        print(f"vllm-lite: {told}", file=sys.stderr)
    return int(sent.left > 0)


def doctor(args: argparse.Namespace) -> int:
    """Examine it and print each look; 1 where the span did not arrive. Raises VLLMValidationError for a refused setting."""
    found, console = examine(args.otlp_traces_endpoint), new_console()
    screen = Screen.of(console)
    console.print(screen.title("doctor", screen.printable(found.endpoint), found.protocol))
    for well, sentence in found.looks:
        line = Text("well  " if well else "ill   ", STRONG if well else ERROR)
        console.print(line.append(screen.printable(sentence), "not bold"), soft_wrap=True)
    for remedy in found.remedies:
        console.print(Text.assemble(("do    ", STRONG), screen.printable(remedy)), soft_wrap=True)
    return 0 if found.arrived else 1
