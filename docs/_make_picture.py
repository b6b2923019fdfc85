"""Make the pictures of the README and the docs from real runs in a terminal.

    python docs/_make_picture.py

Writes ``_static/demo.svg`` and ``_static/plot.png`` from the demonstration, ``_static/approval.svg``, an
animation of a run with an approval, and a picture of each example in ``_static/examples``.
"""

import io
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from fcntl import ioctl
from itertools import groupby
from pathlib import Path
from termios import TIOCSWINSZ

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

WIDTH, HEIGHT = 98, 40
QUESTION = (
    "What was the hottest day in Seattle in the summer of 2015,"
    " and how did daily highs move over those months?"
)
SHOWN_FOLDER = "~/weather"
HERE = Path(__file__).parent
STATIC = HERE / "_static"
FRAME_SECONDS, LONGEST_FRAME_SECONDS, LAST_FRAME_SECONDS = 0.2, 1.2, 5.0
EXAMPLES = {
    "data_analyst": ["--sample", "Plot the total revenue per month"],
    "document_answers": [".", "What happens if the disk is full?"],
    "tool_integrator": ["--yes"],
    "many_workers": ["--turns", "4"],
}


class Screen(pyte.Screen):
    """A screen that keeps dim text, which pyte takes for plain."""

    def select_graphic_rendition(self, *attributes, **given):
        super().select_graphic_rendition(*attributes, **given)
        if 2 in attributes:
            self.cursor.attrs = self.cursor.attrs._replace(fg="808080")


def record(command, folder, *, width=WIDTH, height=HEIGHT, typed=(), environment=None):
    """Run a command in a terminal of its own.

    Args:
        command: Arguments of the interpreter.
        folder: Working folder.
        width: Columns of the terminal.
        height: Rows of the terminal.
        typed: Pairs of a text to wait for and the line to type then.
        environment: Additional environment variables.

    Returns:
        Pairs of a time in seconds and the styled lines on the screen at that time.
    """
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE / "examples")]),
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "PYTHONWARNINGS": "ignore",
            **(environment or {}),
        },
    )
    os.close(theirs)
    screen = Screen(width, height)
    stream = pyte.ByteStream(screen)
    frames, answers, start = [], list(typed), time.monotonic()
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # Linux reports the closed terminal this way
            break
        if not data:
            break
        stream.feed(data)
        frames.append((time.monotonic() - start, lines_of(screen, folder)))
        if answers and answers[0][0] in "\n".join(screen.display):
            time.sleep(1.5)
            os.write(ours, f"{answers.pop(0)[1]}\n".encode())
    if process.wait():
        raise SystemExit("\n".join(screen.display))
    return frames


def lines_of(screen, folder):
    """Turn the screen into styled lines, with a folder that belongs to nobody."""
    lines = []
    for row in range(screen.lines):
        cells = [screen.buffer[row][column] for column in range(screen.columns)]
        line = Text()
        for (colour, bold), group in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
            line.append("".join(cell.data for cell in group), Style(color=known(colour), bold=bold))
        line.rstrip()
        lines.append(without(line, str(folder)))
    while lines and not lines[-1].plain:
        lines.pop()
    return lines


def known(colour):
    """Translate a colour of pyte for rich."""
    if colour == "default":
        return None
    return (
        f"#{colour}"
        if re.fullmatch(r"[0-9a-f]{6}", colour)
        else {"brown": "yellow"}.get(colour, colour)
    )


def without(line, folder):
    """Replace the temporary folder in a line; its style is that of the line's beginning."""
    if folder not in line.plain:
        return line
    style = line.spans[0].style if line.spans else ""
    return Text(line.plain.replace(folder, SHOWN_FOLDER), style)


def picture(lines, name, prompt, width=WIDTH, height=None):
    """Return an SVG picture of lines on a terminal, below the command that printed them."""
    console = Console(record=True, width=width + 2, file=io.StringIO(), highlight=False)
    console.print(Text.assemble(("$ ", "bold green"), prompt))
    for line in lines:
        console.print(line, soft_wrap=True)
    for _ in range(len(lines), height or 0):
        console.print()
    svg = console.export_svg(title="capgraph", theme=DIMMED_MONOKAI, unique_id=name)
    # The picture must not fetch anything.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)
    return svg.replace("Fira Code,", "Menlo, Consolas, DejaVu Sans Mono,")


def animation(frames, prompt, width, height):
    """Return an SVG picture that shows one frame after the other, and repeats."""
    chosen, shown_at, seen_at = [], 0.0, frames[0][0]
    for at, lines in frames:
        # A slow machine makes no slow picture.
        shown_at += min(at - seen_at, LONGEST_FRAME_SECONDS)
        seen_at = at
        if chosen and shown_at - chosen[-1][0] < FRAME_SECONDS:
            chosen[-1] = (chosen[-1][0], lines)
        else:
            chosen.append((shown_at, lines))
    total = chosen[-1][0] + LAST_FRAME_SECONDS
    parts, styles = [], []
    for number, (at, lines) in enumerate(chosen):
        end = chosen[number + 1][0] if number + 1 < len(chosen) else total
        first, last = 100 * (at if number else 0) / total, 100 * end / total
        styles.append(
            f"@keyframes f{number} {{ 0%, {first:.3f}% {{ visibility: hidden }}"
            f" {first + 0.001:.3f}%, {last:.3f}% {{ visibility: visible }}"
            f" {last + 0.001:.3f}%, 100% {{ visibility: hidden }} }}"
            f" #f{number} {{ animation: f{number} {total:.2f}s step-end infinite }}"
        )
        svg = picture(lines, f"t{number}", prompt, width, height)
        parts.append(f'<g id="f{number}">{svg}</g>')
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', parts[0])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {box[1]} {box[2]}">'
        f"<style>{' '.join(styles)}</style>{''.join(parts)}</svg>"
    )


def make_demo():
    """Write the pictures of the demonstration."""
    with tempfile.TemporaryDirectory(prefix="w") as name:
        folder = Path(name).resolve()
        config = str(HERE.parent / "configs" / "demo.yml")
        command = ["-m", "capgraph", "ask", "--db", "memory", "--config", config, QUESTION]
        dpi = {"CAPGRAPH_CAPABILITIES__PLOTTING__DPI": "80"}
        frames = record(command, folder, environment=dpi)
        (STATIC / "demo.svg").write_text(picture(frames[-1][1], "demo", "make demo"))
        [plot] = (folder / "capgraph-output").glob("*.png")
        shutil.copyfile(plot, STATIC / "plot.png")


def make_examples():
    """Write the animation of an approval and a picture of each example."""
    (STATIC / "examples").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="w") as name:
        folder = Path(name).resolve()
        warehouse = {"WAREHOUSE": str(folder / "warehouse.db")}
        config = str(HERE / "examples" / "warehouse_assistant.yml")
        ask = ["-m", "capgraph", "ask", "--db", "memory", "--as", "Ann", "--config", config]
        ask.append("Order 40 bolts")
        answers = [("decision> ", "e"), ("parameter> ", "quantity = 50")]
        answers += [("quantity = 50", "")]
        frames = record(ask, folder, width=80, height=24, typed=answers, environment=warehouse)
        prompt = "capgraph ask 'Order 40 bolts'"
        (STATIC / "approval.svg").write_text(animation(frames, prompt, 80, 24))
        for file, arguments in EXAMPLES.items():
            charts = ["--charts", str(folder)] if file == "data_analyst" else []
            command = [str(HERE / "examples" / f"{file}.py"), *charts, *arguments]
            frames = record(command, HERE if file == "document_answers" else folder)
            prompt = shlex.join(["python", f"{file}.py", *arguments])
            svg = picture(frames[-1][1], file, prompt)
            (STATIC / "examples" / f"{file}.svg").write_text(svg)


def main():
    """Write all pictures, or only those of the functions named on the command line."""
    for name in sys.argv[1:] or ["demo", "examples"]:
        globals()[f"make_{name}"]()


if __name__ == "__main__":
    main()
