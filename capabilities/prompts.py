"""Prompts of the capabilities that call a model: memory, time ranges, queries, and code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from capgraph.prompts import DATA_RULE, PromptBuilder, as_data, as_request


class MemoryExtractionPrompt(PromptBuilder):
    """Prompt builder for extracting facts to remember from a conversation.

    The prompt context is ``conversation``.
    """

    role = "You find what a person wants an agent to remember about them."
    instructions = (
        "Rules:\n"
        "- Keep what the person states about themselves or asks to be remembered, as short"
        " sentences that can be understood later without the conversation.\n"
        "- Keep nothing that the agent said, nothing guessed, and no passwords or keys.\n"
        "- Nothing to remember is a good answer.\n"
        f"- {DATA_RULE}"
    )

    def get_dynamic_context(self, *, conversation: str = "", **_: Any) -> str:
        """Return the conversation for the prompt, delimited as data rather than instructions."""
        return as_data("conversation", conversation)


class TimeRangeParsingPrompt(PromptBuilder):
    """Prompt builder for parsing time ranges with a language model.

    The prompt context is ``text``, ``now`` (ISO 8601), and ``timezone``.
    """

    role = "You turn the times that a text speaks of into a start and an end."
    instructions = (
        "Rules:\n"
        "- Give start and end as ISO 8601 with an offset; the end is not part of the range.\n"
        "- Relative times count from the present given below, in its zone.\n"
        "- A text that names no time has no range; do not make one up.\n"
        f"- {DATA_RULE}"
    )

    def get_dynamic_context(
        self, *, text: str = "", now: str = "", timezone: str = "", **_: Any
    ) -> str:
        """Return the current time and the text for the prompt, with the text delimited as data."""
        zone = f" ({timezone})" if timezone else ""
        present = f"The present is {now}{zone}.\n\n" if now else ""
        return present + as_data("text", text)


class QueryPrompt(PromptBuilder):
    """Prompt builder for writing a typed query over tables.

    The prompt context is ``task`` (the question) and ``tables`` (descriptions of the tables).
    """

    role = "You write a query over a table, as JSON, that answers a question."
    # The example queries have no times, because the question's times are parsed without a model.
    instructions = (
        "- aggregate: rows (number of rows), sum, mean, median, min, max, std, distinct (number of"
        " different values), values (single rows), first or last (earliest or latest row that passes"
        " where), correlation (with by), none (the table does not have the answer)\n"
        "- value: the column that is computed; by: the second column of a correlation\n"
        "- where: conditions that rows must pass; leave out the times of the question\n"
        "- group_by: one result for each value of a column, or for each month, year, weekday\n"
        "- order and limit: the highest or lowest results\n"
        f"- {DATA_RULE}\n\n"
        "EXAMPLES for a table sales: 'amount' number, 'price' number, 'city' category: 'Paris',"
        " 'Rome', 'shipped' category: 'yes', 'no', time from date: a row each order\n"
        "Request: average price in Rome\n"
        '{"aggregate": "mean", "value": "price", "where": [{"column": "city", "op": "=", "value":'
        ' "Rome"}]}\n'
        "Request: how many Parisian orders cost more than 50?\n"
        '{"aggregate": "rows", "where": [{"column": "city", "op": "=", "value": "Paris"}, {"column":'
        ' "price", "op": ">", "value": 50}]}\n'
        "Request: dearest order, and when\n"
        '{"aggregate": "values", "value": "price", "order": "highest", "limit": 1}\n'
        "Request: which city bought the least\n"
        '{"aggregate": "sum", "value": "amount", "group_by": ["city"], "order": "lowest", "limit":'
        " 1}\n"
        "Request: month with the most unshipped orders\n"
        '{"aggregate": "rows", "where": [{"column": "shipped", "op": "=", "value": "no"}],'
        ' "group_by": ["month"], "order": "highest", "limit": 1}\n'
        "Request: when did the price first pass 90\n"
        '{"aggregate": "first", "value": "price", "where": [{"column": "price", "op": ">", "value":'
        " 90}]}\n"
        "Request: what share of the orders went to Rome\n"
        '{"aggregate": "rows", "where": [{"column": "city", "op": "=", "value": "Rome"}], "share":'
        " true}\n"
        "Request: tallest customer\n"
        '{"aggregate": "none"}'
    )

    def get_dynamic_context(self, *, task: str = "", tables: str = "", **_: Any) -> str:
        """Return the tables and the question for the prompt."""
        return f"{as_data('tables', tables)}\n\n{as_request(task)}"


class PythonPrompt(PromptBuilder):
    """Prompt builder for generating Python analysis code.

    The prompt context is ``task``, ``inputs`` (descriptions of the available data), ``failure``
    (error message of the previous run), and ``previous`` (the code that failed).
    """

    role = "You write Python that answers a question about data at hand."
    instructions = (
        "Rules:\n"
        "- Answer with one complete program in one fenced block, and nothing else.\n"
        "- The data is in the dictionary `inputs`, as plain dictionaries, lists, strings and"
        " numbers; use only what is listed below, under the names given there.\n"
        "- Check that the data has what you need, and raise an error that says what is missing.\n"
        "- Put the answer into the variable `result`: only None, bool, int, float, str, list and"
        " dict with string keys; no NaN; a summary, not all rows.\n"
        "- Save pictures with matplotlib as PNG files in the folder `figures`.\n"
        "- Installed packages such as numpy, pandas and duckdb may be imported when needed.\n"
        "- There is no network, no other process, little time, and no file but those in the"
        " working folder.\n"
        f"- {DATA_RULE}"
    )

    def get_dynamic_context(
        self,
        *,
        task: str = "",
        inputs: Sequence[str] = (),
        failure: str = "",
        previous: str = "",
        **_: Any,
    ) -> str:
        """Return the task, the input descriptions, and the previous failure for the prompt."""
        parts = [as_request(task)]
        if inputs:
            parts.append("Inputs:\n" + as_data("inputs", "\n".join(inputs)))
        if previous:
            parts.append("Your last program:\n" + as_data("program", previous))
        if failure:
            parts.append("How it failed:\n" + as_data("failure", failure))
        return "\n\n".join(parts)
