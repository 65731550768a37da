"""How Sphinx builds the site: ``make docs``."""

project = "Slicewise"
copyright = "the Slicewise authors"  # noqa: A001 -- Sphinx has this name for it
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "Slicewise"
html_show_copyright = False
html_show_sphinx = False
html_use_index = False

# Links to headings, by the names that the public forges give them.
myst_heading_anchors = 4
