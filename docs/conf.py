"""Sphinx configuration: MyST pages and a reference made from docstrings."""

from importlib.metadata import version as installed_version

project = "capgraph"
release = version = installed_version(project)
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
html_title = f"{project} {release}"
html_static_path = ["_static"]

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
suppress_warnings = ["ref.python"]  # names that several rooms export


def setup(app):
    """Leave out the fields of named tuples as members: their docstrings list them."""
    app.connect(
        "autodoc-skip-member",
        lambda app, what, name, value, skip, options: (
            type(value).__name__ == "_tuplegetter" or None
        ),
    )
