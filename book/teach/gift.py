"""Writes questions.md as questions.gift, the format that Moodle imports."""

import re
from pathlib import Path

# number, question, the four answers, and why the wrong ones are wrong
QUESTION = re.compile(
    r"\*\*(\d+)\.\*\* (.*?)\n\n(.*?)\n\n\*Right: .\.\* (.*?)\n(?:\n|$)", re.DOTALL
)


def escaped(text: str) -> str:
    return re.sub(r"([~=#{}:])", r"\\\1", " ".join(text.split()))


def gift(text: str) -> str:
    """The questions of a text; a wrong answer says why, and the right one has no why."""
    blocks = []
    for number, question, answers, why in QUESTION.findall(text):
        why = re.findall(r"(\w)\)\s(.*?)(?=\s\w\)\s|$)", why, re.DOTALL)
        reasons = {letter: escaped(reason) for letter, reason in why}
        lines = []
        for letter, answer in re.findall(r"^\* (\w)\) (.*)", answers, re.MULTILINE):
            wrong = letter in reasons
            reason = f"#{reasons[letter]}" if wrong else ""
            lines.append(f"{'~' if wrong else '='}{escaped(answer)}{reason}")
        head = f"::{number}::[markdown]{escaped(question)} {{"
        blocks.append("\n".join([head, *lines, "}\n"]))
    return "\n".join(blocks)


if __name__ == "__main__":
    here = Path(__file__).parent
    text = (here / "questions.md").read_text(encoding="utf-8")
    (here / "questions.gift").write_text(gift(text), encoding="utf-8")
