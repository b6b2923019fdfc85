"""Writes the tables of the reference, which a forge shows where it shows nothing of autodoc.

    python docs/_make_reference.py

Each mark precedes a table: the settings, the state keys, or the public names of the modules that the
page documents between this mark and the next mark for names.
"""

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capgraph.base.declarations import FORMS, YAML_FORMS, accepted_names
from capgraph.cli.commands.settings import iter_settings, settings_schema
from capgraph.configs.settings import Settings
from capgraph.state import AgentState, StateSchema

PAGES = Path(__file__).parent / "reference"
MADE = re.compile(r"(<!-- (names|settings|state|declarations) -->\n).*?(<!-- end -->)", re.S)


def made(page: str) -> str:
    """Return a page with its tables as they have to be."""

    def fill(found: re.Match[str]) -> str:
        section = page[found.end() :].partition("<!-- names -->")[0]
        tables = {
            "names": lambda: table("name", "description", names(section)),
            "settings": lambda: table("key and default", "meaning", settings()),
            "state": lambda: StateSchema.from_class(AgentState).to_markdown(),
            "declarations": declarations,
        }
        return f"{found[1]}{tables[found[2]]().strip()}\n{found[3]}"

    return MADE.sub(fill, page)


def names(section: str) -> Iterator[tuple[str, str]]:
    """Yield the names that a section's directives document, each with its summary."""
    for directive in re.finditer(
        r"^\.\. auto(module|function):: (\S+)\n((?: +:.*\n)*)", section, re.M
    ):
        options = dict(re.findall(r":([\w-]+): (.*)", directive[3]))
        module, wanted = directive[2], options.get("members", "").split(", ")
        if directive[1] == "function":
            module, _, name = module.rpartition(".")
            wanted = [name]
        found = importlib.import_module(module)
        listed = [name for name in wanted if name] or getattr(found, "__all__", None)
        for name in sorted(listed or own(found)):
            if name not in options.get("exclude-members", "").split(", "):
                value = getattr(found, name)
                # Of a constant that has no text of its own, its class would speak.
                about = (
                    inspect.getdoc(value)
                    if inspect.isroutine(value) or inspect.isclass(value)
                    else ""
                )
                yield name, (about or "").split("\n")[0]


def own(module: Any) -> list[str]:
    """Name the public classes and functions that a module defines."""
    parts = [v for k, v in vars(module).items() if not k.startswith("_")]
    return [v.__name__ for v in parts if getattr(v, "__module__", "") == module.__name__]


def settings() -> Iterator[tuple[str, str]]:
    """Yield every key of the settings with its default, and what it means."""
    schema = settings_schema(Settings)
    for path, value in iter_settings(Settings.model_construct()):
        part = schema
        for name in path[:-1]:
            part = schema["$defs"][part["properties"][name]["$ref"].rpartition("/")[2]]
        yield (
            f"{'.'.join(path)}: {json.dumps(value)}",
            part["properties"][path[-1]].get("description", ""),
        )


def declarations() -> str:
    """Write the table of declarations and the forms that accept them."""
    forms: dict[str, tuple[str, ...]] = {form: accepted_names(form) for form in FORMS}
    for section, form in YAML_FORMS.items():
        forms[f"`{section}:`"] = accepted_names(form, yaml=True)
    columns = tuple(forms)
    lines = [f"| declaration | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name in dict.fromkeys(name for names in forms.values() for name in names):
        cells = ["yes" if name in forms[column] else "" for column in columns]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def table(left: str, right: str, rows: Iterator[tuple[str, str]]) -> str:
    """Write a table in Markdown."""
    lines = [f"| {left} | {right} |", "|---|---|"]
    for name, about in rows:
        plain = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", about).replace("``", "`")
        lines.append(f"| `{name}` | {plain.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


if __name__ == "__main__":
    for file in sorted(PAGES.glob("*.md")):
        file.write_text(made(file.read_text("utf-8")), "utf-8")
