"""``capgraph settings``: every setting with its value and source."""

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
        typer.Option(
            "--schema", help="Print the JSON schema of configuration files, for use in editors."
        ),
    ] = False,
) -> None:
    """Show every setting with its value and its origin."""
    from capgraph.configs.logger import mask_data
    from capgraph.configs.settings import Settings
    from capgraph.configs.yaml_files import read_yaml

    if schema:
        typer.echo(json.dumps(settings_schema(Settings), indent=2))
        return
    read = shared.settings()
    environment_file = os.environ.get("CAPGRAPH_CONFIG")
    files = [
        *([environment_file] if environment_file else []),
        *map(str, config_files(shared.config)),
    ]
    sources = [(file, read_yaml(file)) for file in files]
    rows_found = []
    for path, value in iter_settings(read):
        variable = "CAPGRAPH_" + "__".join(path).upper()
        source = "command line" if path[0] in {"data_folders", "user"} else "default"
        for file, values in sources:
            source = file if _has_path(values, path) else source
        for variable_name in os.environ:
            # A variable may set a single key, or a whole section as JSON.
            name = variable_name.upper()
            if f"{variable}__".startswith(f"{name}__") or name.startswith(f"{variable}__"):
                source = variable_name
        masked = mask_data({path[-1]: value})[path[-1]]
        rows_found.append({"key": ".".join(path), "value": masked, "source": source})
    rows = [
        (row["key"], json.dumps(row["value"], default=str), row["source"]) for row in rows_found
    ]
    print_rows(("key", "value", "source"), rows, data=rows_found if shared.as_json else None)


def iter_settings(
    section: BaseModel, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the JSON-compatible value of each setting, including nested settings."""
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
    """Return the JSON schema of a settings model, with descriptions taken from its docstrings."""
    schema = model.model_json_schema()
    for part in [schema, *schema["$defs"].values()]:
        _, _, listed = part.get("description", "").partition("Attributes:\n")
        descriptions: dict[str, str] = {}
        name = ""
        for line in listed.splitlines():
            field, colon, text = line.strip().partition(": ")
            if colon and field in part["properties"]:
                name, descriptions[field] = field, text
            elif name and line.strip() and not line.strip().startswith(">>>"):
                descriptions[name] += f" {line.strip()}"
            else:
                name = ""
        for key, text in descriptions.items():
            part["properties"][key]["description"] = text.replace("``", "")
    return schema
