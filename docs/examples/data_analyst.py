"""A data analyst over your own files: it answers, shows its query, and draws charts.

    python data_analyst.py sales.csv "Which product had the highest revenue in 2024?"
    python data_analyst.py --sample "What was the total revenue per month?"

Two capabilities are capgraph's own (`query_data`, `plotting`). The third one is written here: it
describes the columns of the files.
"""

import argparse
import asyncio
import csv
import random
import tempfile
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from capgraph import CapabilityContext, Registry, build_graph, capability_node
from capgraph.capabilities.contexts import DataSource
from capgraph.configs.settings import Settings, load_settings

PRODUCTS = {"kettle": 29.0, "lamp": 45.0, "toaster": 35.0}


class Columns(CapabilityContext):
    """Column names of the files, by file name."""

    files: dict[str, list[str]]

    def get_summary(self) -> str:
        return " ".join(f"{name} has {', '.join(found)}." for name, found in self.files.items())


@capability_node(examples=["which columns are there?", "what is in this file?"])
async def describe_columns(source: DataSource) -> Columns:
    """List the columns of the data files."""

    def read(path: str) -> list[str]:
        with open(path, newline="", encoding="utf-8") as file:
            return next(csv.reader(file))

    found = {path: await asyncio.to_thread(read, path) for path in source.files}
    return Columns(files={Path(path).name: columns for path, columns in found.items()})


def write_sample(folder: Path) -> Path:
    """Write a year of sales and return the file."""
    rng = random.Random(7)
    path = folder / "sales.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["date", "product", "units", "revenue"])
        for day in range(366):
            for product, price in PRODUCTS.items():
                units = rng.randint(0, 9)
                sold_on = date(2024, 1, 1) + timedelta(days=day)
                rows.writerow([sold_on, product, units, round(units * price, 2)])
    return path


def analyst_settings(files: list[Path], charts: Path) -> Settings:
    """Return settings that allow the agent to read these files and no others."""
    return load_settings(
        name="Data analyst",
        modules=[
            "capgraph.capabilities.contexts",
            "capgraph.capabilities.time_range_parsing",
            "capgraph.capabilities.query_data",
            "capgraph.capabilities.plotting",
        ],
        provided_types=["DATA_SOURCE"],
        data_folders=[str(file) for file in files],
        capabilities={"plotting": {"output_dir": str(charts)}},
    )


async def analyze(question: str, files: list[Path], charts: Path) -> dict[str, Any]:
    """Answer a question about the files and return the state of the turn."""
    settings = analyst_settings(files, charts)
    registry = Registry.from_settings(settings).with_(describe_columns)
    graph = build_graph(registry, settings=settings)
    source = {"DATA_SOURCE": {"files": {"files": [str(file) for file in files]}}}
    return await graph.ainvoke(
        {"messages": [("user", question)], "capability_context_data": source}
    )


def show(out: dict[str, Any]) -> None:
    """Print the answer, the queries behind it, and the charts."""
    print(out["messages"][-1].text)
    contexts = out["capability_context_data"]
    for result in contexts.get("QUERY_RESULT", {}).values():
        for answer in result["answers"]:
            query = {name: value for name, value in answer["query"].items() if value}
            print("  query:", query)
    for chart in contexts.get("PLOT", {}).values():
        print("  chart:", chart["path"])


def main() -> None:
    """Read the command line and answer one question."""
    parser = argparse.ArgumentParser(description="Answer a question about data files.")
    parser.add_argument("words", nargs="+", metavar="FILE... QUESTION")
    parser.add_argument("--sample", action="store_true", help="use a generated year of sales")
    parser.add_argument("--charts", type=Path, default=Path("charts"), help="folder for charts")
    options = parser.parse_args()
    *files, question = options.words
    paths = [Path(file).resolve() for file in files]
    if options.sample:
        paths.append(write_sample(Path(tempfile.mkdtemp())))
    show(asyncio.run(analyze(question, paths, options.charts)))


if __name__ == "__main__":
    main()
