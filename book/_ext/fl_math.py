"""Local Sphinx extension: formulas are MathML, which needs no script to be seen.

It is made from TeX while the book is built, on pages and in outputs of cells alike.
"""

import html
import re

from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.ext.mathjax import html_visit_displaymath, html_visit_math

FORMULA = re.compile(
    r'(<(span|div) class="math [^>]*>)\s*\\[(\[](.*?)\\[)\]]\s*(?=</\2>)', re.DOTALL
)
NUMBER = re.compile(r"\\tag\{(.*?)\}")
NORM = re.compile(r"(?<!\\left)(?<!\\right)\\([lr])([vV]ert)")
PRIME = "<mi>′</mi>"
RAISED = '<mo lspace="0" rspace="0">′</mo>'


def _word(letters: re.Match[str]) -> str:
    return f"<mi>{re.sub('<.*?>', '', letters[0])}</mi>"


TUNING = (  # habits of TeX that latex2mathml leaves out
    # functions: a thin space on both sides, but none before a bracket
    (r"<m([io])>([a-z]{3,})</m\1>", r'<mo lspace="0" rspace="0.17em">\2</mo>'),
    (r'(</m[in]>)<mo lspace="0"', r'\1<mo lspace="0.17em"'),
    (r'rspace="0.17em"(>\w+</mo>(?:</mrow>)?<mo[^>]*>\()', r'rspace="0"\1'),
    # words in roman letters are one word
    (r'(?:<mi mathvariant="normal">\w</mi>){2,}', _word),
    (r"<mi>([Α-Ω])</mi>", r'<mi mathvariant="normal">\1</mi>'),
    # what is an operator, and what is a sign before a number
    (r"<mo>([∞…])</mo>", r"<mi>\1</mi>"),
    (r"<m[io]>~</m[io]>", "<mo>∼</mo>"),
    (r"<mi>±</mi>", "<mo>±</mo>"),
    (r"(<mo[^>]*>[=,∈≈(]</mo>)<mo>−", r'\1<mo form="prefix">−'),
    # a prime is raised by its letter already
    (rf"<msup>((?:(?!<msup>).)*?){PRIME}</msup>", rf"<mrow>\1{RAISED}</mrow>"),
    (
        rf"<msubsup>((?:(?!<msubsup>).)*?){PRIME}</msubsup>",
        rf"<mrow><msub>\1</msub>{RAISED}</mrow>",
    ),
    # bars and brackets
    (r'stretchy="true" fence="true" (form="\w+">[‖|])', r'stretchy="false" \1'),
    (r"<mo([^>]*)>([|/])</mo>", r'<mo\1 lspace="0" rspace="0">\2</mo>'),
    (r' minsize="2.047em" maxsize="2.047em"', ""),
    # accents
    (r"<mover>", '<mover accent="true">'),
    (r"<mo>\^</mo></mover>", '<mo stretchy="false">ˆ</mo></mover>'),
)


def mathml(tex: str, display: str = "inline") -> str:
    """A formula as MathML, which keeps its TeX as ``alttext``."""
    sides = NORM.sub(
        lambda its: rf"\{'left' if its[1] == 'l' else 'right'}{its[0]}", tex
    )
    formula = re.sub(
        r"&#x([0-9A-F]+);",
        lambda its: html.escape(chr(int(its[1], 16))),
        convert(sides, display=display),
    )
    for pattern, tuned in TUNING:
        formula = re.sub(pattern, tuned, formula)
    if "\\" in formula:
        raise ValueError(f"latex2mathml cannot read a command of {tex}.")
    return formula.replace("<math", f'<math alttext="{html.escape(tex)}"', 1)


def _formula(match: re.Match[str]) -> str:
    """A formula; in a line of its own, its parts stand below one another if they have to."""
    opening, kind, escaped = match.groups()
    tex = html.unescape(escaped)
    number = "".join(f"<span>({each})</span>" for each in NUMBER.findall(tex))
    tex = NUMBER.sub("", tex).strip()
    if kind == "span":
        return f"{opening}{mathml(tex)}{number}"
    parts = tex.split(r"\qquad")
    formulas = "".join(mathml(part.strip(), "block") for part in parts)
    return f'{opening}<div class="fl-parts">{formulas}</div>{number}'


def _with_formulas(app, pagename, templatename, context, doctree):
    if "body" in context:
        context["body"] = FORMULA.sub(_formula, context["body"])


def setup(app: Sphinx):
    app.add_html_math_renderer(
        "mathml", (html_visit_math, None), (html_visit_displaymath, None)
    )
    app.connect("html-page-context", _with_formulas)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
