"""What Sphinx is told of the site."""

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

from beanstalk_server.version import VERSION

project = "beanstalk-server"
author = "the authors of beanstalk-server"
release = VERSION
language = "en"

extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 6
highlight_language = "none"

html_theme = "furo"
html_title = f"beanstalk-server {VERSION}"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False


def setup(app: Sphinx) -> None:
    """Let the settings of Redis be shown as they are: Pygments does not know them."""
    app.add_lexer("conf", TextLexer)
