"""Sphinx configuration: MyST pages and a reference made from docstrings."""

from framework.state import AgentState, StateSchema

project = "capgraph"
author = "The capgraph maintainers"
copyright = "2026, the capgraph maintainers"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "capgraph"
html_static_path = ["_static"]

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist", "substitution"]
myst_substitutions = {"state_keys": StateSchema.of(AgentState).table()}
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
suppress_warnings = ["ref.python"]  # names that several rooms export
