"""Pictures of a simulated or measured step."""

from hyper_pp.render.html import render_html
from hyper_pp.render.numbers import render_numbers
from hyper_pp.render.perfetto import render_perfetto
from hyper_pp.render.svg import render_svg
from hyper_pp.render.text import render_text

__all__ = ["render_html", "render_numbers", "render_perfetto", "render_svg", "render_text"]
