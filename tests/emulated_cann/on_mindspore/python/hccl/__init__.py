"""Stands in for CANN's Python package, whose version MindSpore looks at."""


class sys_version:
    """What MindSpore reads."""

    __sys_version__ = "8.0"
