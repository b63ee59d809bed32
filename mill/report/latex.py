"""A table for LaTeX, with the rules of the package booktabs. Every text is escaped."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mill.api.printing import one_line

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\symbol{34}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "-": "{-}",  # two of them would become a dash
    "±": r"$\pm$",
    "–": r"\textendash{}",
    "…": r"\ldots{}",
    # At the start of a line or cell these are an optional argument and a star of the command before.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
}


def escape_latex(text: str) -> str:
    """A text in which nothing is a command: also no ligature such as -- and no argument such as [2cm]."""
    return "".join(_ESCAPES.get(char, char) for char in one_line(text))


def latex_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Sequence[str] = (),
    bold: Collection[tuple[int, int]] = (),
    notes: Sequence[str] = (),
) -> str:
    """A tabular environment; the columns named in `numbers` are aligned on the right. Notes are comments above it."""
    align = "".join("r" if column in numbers else "l" for column in columns)
    body = [[_cell(cell, (number, column) in bold) for column, cell in enumerate(row)] for number, row in enumerate(rows)]
    lines = [
        r"% \usepackage{booktabs}, \usepackage{textcomp}",
        *(f"% {one_line(note)}" for note in notes),
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
        _line([escape_latex(column) for column in columns]),
        r"\midrule",
        *map(_line, body),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str, bold: bool) -> str:
    escaped = escape_latex(text)
    return rf"\textbf{{{escaped}}}" if bold and escaped else escaped


def _line(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"
