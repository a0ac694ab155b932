"""Foreign text in every place of a report: it is shown, and does nothing else, in any format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ampcheck.report import junit, markdown
from ampcheck.report import sarif as sarif_report
from ampcheck.report.annotations import commands
from ampcheck.report.formats import render
from ampcheck.report.plain import plain
from ampcheck.report.schema import faults, schema
from ampcheck.report.text import clean, one_line

#: What has ended a value, started a tag, a command, a link or a mention, or hidden a text somewhere.
PIECES = [
    "<script>alert(1)</script>", "</style><img src=x onerror=alert(1)>", "<!--", "-->", "<![CDATA[", "]]>", "<?x", "&lt;", "&#60;",
    '"', "'", "`", "```", "~~~", "|", "\\", "\\|", "*", "_", "__init__", "[x](http://example.org)", "![x](y)", "<http://example.org>",
    "https://example.org/a", "www.example.org", "a@example.org", "mailto:a@example.org", "@octocat", "#12", "GH-12", "$x$", "\n", "\r\n", "\r", "\t", "\n# ", "\n- ", "\n```\n",
    "::error::x", "\n::error file=a::b", "\n  ::stop-commands::x", "##[add-mask]x", "%", "%0A", "%25", ":", ",", "::",
    "\x1b[31m", "\x1b]8;;http://example.org\x07", "\x00", "\x07", "\x85", "\u2028", "\u202e", "\u2066", "\u200b", "\ufeff", "\ufffe", "\ud800", "\U000e0041", "{{ 7 * 7 }}", "{% x %}", "{0}", "](1)",
    "../../etc/passwd", "C:\\x", "file:///etc", "javascript:alert(1)", "$(x)", "a", " ", "é", "x" * 10_000,
]  # fmt: skip
TEXT = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=8).map("".join)
#: Enough to see in a second or two; the profile "ampcheck-thorough" looks longer.
HOSTILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
Build = Callable[..., dict[str, Any]]
ALL = "".join(PIECES[:-1])


def hostile(build: Build, text: str) -> dict[str, Any]:
    """Every text is the same, and has a number so that no two are alike."""
    return plain(build(lambda n: f"{text}{n}"))


@HOSTILE
@given(TEXT)
@example(ALL)
def test_json_keeps_every_text_and_is_valid(document: Build, text: str) -> None:
    data = hostile(document, text)
    read = json.loads(render(data, "json"))
    assert read == data
    assert list(faults(read)) == []
    jsonschema.Draft202012Validator(schema()).validate(read)


@HOSTILE
@given(TEXT)
@example(ALL)
def test_html_has_the_structure_of_its_template(document: Build, outline: Any, undrawn: None, text: str) -> None:
    harmless, page = (outline(render(data, "html")) for data in (document(), hostile(document, text)))
    breaks = ("br",)
    assert [tag for tag in page.tags if tag != breaks] == [tag for tag in harmless.tags if tag != breaks]
    assert page.values == harmless.values
    assert one_line(f"{text}53")[:200] in page.text


@settings(HOSTILE, max_examples=5)
@given(TEXT)
@example(ALL)
@example("$\\frac{1}{0}$ \N{SNOWMAN}\N{GRINNING FACE}")
def test_pictures_have_the_structure_of_their_numbers(document: Build, outline: Any, text: str) -> None:
    harmless, page = (outline(render(data, "html")) for data in (document(), hostile(document, text)))
    assert ("svg", "viewbox", "role", "aria-label") in harmless.tags
    assert set(page.tags) - {("br",)} == set(harmless.tags) - {("br",)}
    assert "could not be drawn" not in page.text


@HOSTILE
@given(TEXT)
@example(ALL)
def test_markdown_has_the_structure_of_its_template(document: Build, text: str) -> None:
    reader = MarkdownIt("gfm-like")
    reader.linkify.set({"fuzzy_link": False})  # code hosts make no link of `train.py`; of `www.` they do: see below
    tokens = [_structure(reader.parse(markdown.render(data))) for data in (document(), hostile(document, text))]
    assert tokens[1] == tokens[0]


def _structure(tokens: Any) -> list[str]:
    found = []
    for token in tokens:
        found.append(f"{token.type} {token.tag}")
        found += [
            f"{t.type} {t.content}" if t.type == "html_inline" else t.type
            for t in token.children or ()
            if t.type != "text" and t.content != "<br>"
        ]
    return found


@HOSTILE
@given(TEXT)
@example(ALL)
def test_markdown_mentions_nobody(document: Build, text: str) -> None:
    shown = re.sub(r"<code>.*?</code>", "", markdown.render(hostile(document, text)))
    shown = re.sub(r"&#(\d+);", lambda match: chr(int(match[1])), shown)
    assert not re.search(r"[@#!~%$&][A-Za-z0-9/]|\bGH-\d|\bwww\.|://", shown)


@HOSTILE
@given(TEXT)
@example(ALL)
def test_junit_is_xml_with_the_same_elements(document: Build, text: str) -> None:
    trees = [ET.fromstring(junit.render(data)) for data in (document(), hostile(document, text))]
    shapes = [[(element.tag, sorted(element.attrib)) for element in tree.iter()] for tree in trees]
    assert shapes[1] == shapes[0]
    assert trees[1].find(".//failure").text.startswith(f"expected: {clean(f'{text}10')}"[:100].partition("\r")[0])


@HOSTILE
@given(TEXT, st.sampled_from(["", "packages/a b"]))
@example(ALL, "")
def test_sarif_points_below_the_root(document: Build, text: str, prefix: str) -> None:
    (run,) = json.loads(sarif_report.render(hostile(document, text), prefix))["runs"]
    assert len(run["results"]) == len(document()["findings"]) + 1 + 1  # one failed item without a finding, one change
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert not re.search(r"\]\(|\{\d+\}", result["message"]["text"])
        physical = result["locations"][0].get("physicalLocation")
        if physical is not None:
            uri = physical["artifactLocation"]["uri"]
            assert uri.isascii() and uri.isprintable() and " " not in uri
            parts = urlsplit(uri)
            assert (parts.scheme, parts.netloc, parts.query, parts.fragment) == ("", "", "", "")
            assert not uri.startswith("/") and ".." not in unquote(uri).split("/")
            assert uri.startswith(f"{prefix.replace(' ', '%20')}/" if prefix else "")
            assert physical["region"]["startLine"] >= 1


#: A command of GitHub, as its runner reads one.
COMMAND = re.compile(r"::(?P<level>error|warning|notice) (?P<values>[^:]*)::(?P<message>.*)")


@HOSTILE
@given(TEXT)
@example(ALL)
@example(",line=1")
def test_workflow_commands_are_ours_alone(document: Build, text: str) -> None:
    lines = list(commands(hostile(document, text)))
    assert len(lines) == 5
    for line in lines:
        assert line.splitlines() == [line] and not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e]", line)
        found = COMMAND.fullmatch(line)
        assert found is not None
        names = [value.partition("=")[0] for value in found["values"].split(",")]
        assert set(names) <= {"file", "line", "title"} and len(set(names)) == len(names)
        assert not re.search(r"%(?!25|0A|0D)", found["message"])


@HOSTILE
@given(TEXT)
@example(ALL)
def test_clean_text_gives_no_orders_and_stays_clean(text: str) -> None:
    shown = clean(text)
    assert not any(line.strip().startswith("::") for line in shown.split("\n"))
    assert "##[" not in shown
    assert all(char.isprintable() or char in "\n\t" or char.isspace() or ord(char) > 0x7F for char in shown)
    assert clean(shown, 10**6) == shown
    shown.encode("utf-8")


@pytest.mark.parametrize("name", ["html", "markdown", "sarif", "junit"])
def test_huge_texts_make_no_huge_report(document: Build, undrawn: None, name: str) -> None:
    assert len(render(hostile(document, "x" * 10_000), name)) < 200_000
