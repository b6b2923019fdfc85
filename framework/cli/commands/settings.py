"""``capgraph settings``: every key, its value and where that comes from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capgraph.cli.agent import config_files
from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import print_rows

if TYPE_CHECKING:
    from pydantic import BaseModel

app: typer.Typer = typer.Typer()


@app.command("settings")
@with_shared_options("config", "as_json")
def settings(
    shared: SharedOptions,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Print the JSON schema of configuration files, for editors."),
    ] = False,
) -> None:
    """Show every setting with its value and its source."""
    from capgraph.configs.logger import mask_data
    from capgraph.configs.settings import Settings
    from capgraph.configs.yaml_files import read_yaml

    if schema:
        typer.echo(json.dumps(settings_schema(Settings), indent=2))
        return
    read = shared.settings()
    named = os.environ.get("CAPGRAPH_CONFIG")
    files = [*([named] if named else []), *map(str, config_files(shared.config))]
    sources = [(file, read_yaml(file)) for file in files]
    told = []
    for path, value in iter_settings(read):
        variable = "CAPGRAPH_" + "__".join(path).upper()
        source = "command line" if path[0] in {"data_folders", "user"} else "default"
        for file, values in sources:
            source = file if _has_path(values, path) else source
        for known in os.environ:
            # A whole section may be given by one variable, as JSON, and one key of it by its own.
            given = known.upper()
            if f"{variable}__".startswith(f"{given}__") or given.startswith(f"{variable}__"):
                source = known
        masked = mask_data({path[-1]: value})[path[-1]]
        told.append({"key": ".".join(path), "value": masked, "source": source})
    rows = [(row["key"], json.dumps(row["value"], default=str), row["source"]) for row in told]
    print_rows(("key", "value", "source"), rows, data=told if shared.as_json else None)


def iter_settings(
    section: BaseModel, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each key of the settings with its value as plain data."""
    from pydantic import BaseModel

    plain = section.model_dump(mode="json")
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from iter_settings(value, (*path, name))
        else:
            yield (*path, name), plain[name]


def _has_path(values: Any, path: tuple[str, ...]) -> bool:
    for part in path:
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return True


def settings_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of the settings, each key with what the documentation says of it."""
    schema = model.model_json_schema()
    for part in [schema, *schema["$defs"].values()]:
        _, _, listed = part.get("description", "").partition("Attributes:\n")
        about: dict[str, str] = {}
        name = ""
        for line in listed.splitlines():
            found, colon, text = line.strip().partition(": ")
            if colon and found in part["properties"]:
                name, about[found] = found, text
            elif name and line.strip() and not line.strip().startswith(">>>"):
                about[name] += f" {line.strip()}"
            else:
                name = ""
        for key, text in about.items():
            part["properties"][key]["description"] = text.replace("``", "")
    return schema
