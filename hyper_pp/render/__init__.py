"""Pictures of a simulated or measured step."""

from hyper_pp.render.numbers import render_numbers
from hyper_pp.render.text import render_text

__all__ = ["render_numbers", "render_text"]
