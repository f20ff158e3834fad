"""A report's content as Markdown and as HTML. Whatever is put into a template is escaped."""

import re
from collections.abc import Callable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gateway.cli.report.content import Content
from gateway.cli.text import counted

_MARKDOWN = re.compile(r"[\\`*_\[\]|~$!#]")


def html(content: Content, svg: str | None) -> str:
    """A page that needs nothing beside it."""
    # The plot is matplotlib's own document, in which names are escaped; a page takes it without its prologue.
    plot = Markup(svg[svg.index("<svg") :]) if svg is not None else None
    return _environment(autoescape=True).get_template("report.html.j2").render(report=content, plot=plot)


def markdown(content: Content, plot: str | None) -> str:
    """CommonMark with GitHub's tables; `plot` is the file name of the plot beside it."""
    return _environment(finalize=_finalize).get_template("report.md.j2").render(report=content, plot=plot)


def escape_markdown(text: str) -> str:
    """`text` as one line of Markdown that means nothing but itself, in a paragraph or in a table."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = _MARKDOWN.sub(r"\\\g<0>", text)
    # Bare addresses would become links.
    text = re.sub(r"(?i)\b(https?|ftp)://", r"\1:<!-- -->//", text)
    text = re.sub(r"(?i)\bwww\.", "www<!-- -->.", text)
    return "<br>".join(line.strip() for line in text.split("\n"))


def _finalize(value: object) -> object:
    return escape_markdown(value) if isinstance(value, str) else value


def _environment(*, autoescape: bool = False, finalize: Callable[[Any], Any] | None = None) -> Environment:
    environment = Environment(
        loader=PackageLoader("gateway.cli.report", ""),
        autoescape=autoescape,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["counted"] = counted
    environment.filters["thousands"] = "{:,}".format
    environment.filters["percent"] = "{:.0%}".format
    return environment
