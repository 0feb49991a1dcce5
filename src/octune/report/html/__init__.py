"""A run as one HTML file: no network, no server, light and dark, paper and phone.

    write_report("octune_runs/bert", Path("report.html"))       # a workspace, finished or not
    write_report(result, Path("report.html"))

From a journal to a page in four steps, each a folder or a file of its own: ``facts`` (what the journal says),
``views`` (what each section shows, as dataclasses), ``svg`` (pictures of views), ``page`` (all of it in a
template).
"""

from octune.report.html.page import render, write_report

__all__ = ["render", "write_report"]
