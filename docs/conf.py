"""Sphinx configuration: MyST pages and a reference made from docstrings."""

from importlib.metadata import version as installed_version

from sphinx import addnodes

project = "capgraph"
release = version = installed_version(project)
author = "The capgraph maintainers"
copyright = "2026, the capgraph maintainers"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_llms_txt",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "comparison/properties.md"]
html_theme = "furo"
html_title = f"{project} {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "source_repository": "https://github.com/capgraph/capgraph/",
    "source_branch": "main",
    "source_directory": "docs/",
    "top_of_page_buttons": ["view", "edit"],
}

copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_copy_empty_lines = False

llms_txt_summary = (
    "capgraph builds LangGraph agents whose plans are checked before they run. This file lists the"
    " pages of its documentation; llms-full.txt contains their text."
)

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {
    "members": True,
    "show-inheritance": True,
    "exclude-members": "model_config",
}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_attr_annotations = True
suppress_warnings = ["ref.python"]  # names that several packages export

# Search words that lead straight to a page, whether or not the page contains them.
SEARCH_WORDS = {
    "tutorial": "quickstart, quick start, getting started, install",
    "guides/ask_a_person": "approval, human in the loop, interrupt, resume",
    "guides/approve_by_two_people": "two-person approval",
    "guides/guard_against_injection": "guardrail, prompt injection, information flow",
    "guides/persistence": "checkpoint, checkpointer, database, thread",
    "guides/use_a_model": "model, provider, fallback model",
    "guides/local_models": "ollama, llama.cpp, local model",
    "guides/limit_cost": "budget, cost, tokens",
    "guides/limit_calls": "rate limit, circuit breaker, retry, timeout",
    "guides/stream_to_a_web_client": "streaming, server-sent events",
    "guides/observe": "logging, progress, event",
    "guides/trace_with_opentelemetry": "tracing, opentelemetry, langsmith, metrics",
    "guides/scale_out": "worker, queue, temporal, deployment",
    "guides/test_an_agent": "testing, mock",
    "guides/evaluate": "evaluation, dataset",
    "guides/mcp_and_a2a": "mcp, a2a",
    "guides/tools_graphs_agents": "tool, subgraph",
    "guides/agents": "agent, react",
    "guides/teams": "multi-agent, supervisor, swarm, handoff",
    "guides/workflows": "workflow, state machine",
    "guides/add_middleware": "middleware, hook",
    "guides/behaviors": "behavior, cache",
    "guides/permissions": "permission, authorization",
    "guides/audit_log": "audit",
    "guides/shape_the_answer": "structured output, answer",
    "guides/configure": "settings, configuration, yaml",
    "guides/replay_a_turn": "replay, time travel",
    "guides/recipes": "recipe",
    "guides/branch_and_replan": "replan, loop, condition",
    "guides/wait_for_events": "schedule, signal, webhook",
    "guides/serve": "server, login, proxy",
    "guides/console": "console, web interface",
    "guides/command_line": "command line, cli",
    "guides/write_a_capability": "capability, parameters, effect",
    "guides/synchronous_code": "synchronous, asyncio",
    "guides/state_stores": "state store, redis",
    "capabilities/memory": "memory",
    "capabilities/query_data": "sql, csv, dataframe",
}


def setup(app):
    """Leave out the fields of named tuples, whose docstrings list them, and add the search words."""
    app.connect(
        "autodoc-skip-member",
        lambda app, what, name, value, skip, options: (
            type(value).__name__ == "_tuplegetter" or None
        ),
    )
    app.connect("doctree-read", add_search_words)


def add_search_words(app, doctree):
    """Add the page's search words as main index entries, which the search ranks first."""
    words = SEARCH_WORDS.get(app.env.docname)
    if words:
        entries = [("single", word, "", "main", None) for word in words.split(", ")]
        doctree.insert(0, addnodes.index(entries=entries))
