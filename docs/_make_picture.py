"""Makes the pictures of the README from a real run of the demonstration.

    python -m pip install pyte
    python docs/_make_picture.py

Runs ``capgraph ask`` in a terminal of its own, reads what stands on its screen at the end, and writes
``_static/demo.svg``; the plot of the run becomes ``_static/plot.png``.
"""

import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
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


class Screen(pyte.Screen):
    """A screen that keeps dim text, which pyte takes for plain."""

    def select_graphic_rendition(self, *attributes, **given):
        super().select_graphic_rendition(*attributes, **given)
        if 2 in attributes:
            self.cursor.attrs = self.cursor.attrs._replace(fg="808080")


def run(folder):
    """Run the demonstration in a terminal; return its screen and the folder's plot."""
    arguments = ["ask", "--db", "memory", "--config", str(HERE.parent / "configs" / "demo.yml")]
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE.parent),
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "CAPGRAPH_CAPABILITIES__PLOTTING__DPI": "80",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "capgraph", *arguments, QUESTION],
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    screen = Screen(WIDTH, HEIGHT)
    stream = pyte.ByteStream(screen)
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not data:
            break
        stream.feed(data)
    if process.wait():
        raise SystemExit("\n".join(screen.display))
    return screen


def lines_of(screen, folder):
    """Turn the screen into styled lines, with a folder that belongs to nobody."""
    lines = []
    for row in range(HEIGHT):
        cells = [screen.buffer[row][column] for column in range(WIDTH)]
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


def main():
    """Write both pictures."""
    with tempfile.TemporaryDirectory(prefix="w") as name:
        folder = Path(name).resolve()
        screen = run(folder)
        console = Console(record=True, width=WIDTH + 2, file=io.StringIO(), highlight=False)
        console.print(Text.assemble(("$ ", "bold green"), "make demo"))
        for line in lines_of(screen, folder):
            console.print(line, soft_wrap=True)
        svg = console.export_svg(title="capgraph", theme=DIMMED_MONOKAI, unique_id="demo")
        # The picture must not fetch anything.
        svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)
        svg = svg.replace("Fira Code,", "Menlo, Consolas, DejaVu Sans Mono,")
        (HERE / "_static" / "demo.svg").write_text(svg, encoding="utf-8")
        [plot] = (folder / "capgraph-output").glob("*.png")
        shutil.copyfile(plot, HERE / "_static" / "plot.png")


if __name__ == "__main__":
    main()
