"""The `ampcheck` command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ampcheck import __version__, registry
from ampcheck.cli import COMMANDS, main
from ampcheck.registry import Check


def judge(evidence):
    """Why it matters.

    More of it.
    """
    yield from ()


@pytest.fixture(autouse=True)
def catalogue(monkeypatch):
    found = {
        "AMP102": Check("AMP102", "clip", "error", "unscale, then clip", "call unscale_ first", (), judge),
        "AMP108": Check("AMP108", "region", "warning", "backward outside", "move it out", ("AMP102",), judge, per_dtype=True),
        "AMP201": Check("AMP201", "skip", "error", "a skip is atomic", "guard it", (), judge),
    }
    monkeypatch.setattr(registry, "load_checks", lambda: found)
    monkeypatch.setattr("ampcheck.cli.catalogue.load_checks", lambda: found)


def test_list_shows_the_catalogue(capsys):
    assert main(["list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "AMP102  error    clip    unscale, then clip",
        "AMP108  warning  region  backward outside",
        "AMP201  error    skip    a skip is atomic",
    ]


def test_list_takes_prefixes(capsys):
    assert main(["list", "AMP2"]) == 0
    assert capsys.readouterr().out == "AMP201  error    skip  a skip is atomic\n"


def test_explain_gives_the_reasoning_the_fix_and_how_to_silence(capsys):
    assert main(["explain", "amp108"]) == 0
    assert (
        capsys.readouterr().out
        == """AMP108-region (warning)

Why it matters.

More of it.

expected  backward outside
fix       move it out

A fault here is not listed beside one of AMP102, which explains it.

There is one item for each declared 16-bit dtype.

silence   @ampcheck.contract(xfail={"AMP108": "why"}) expects it, ignore=["AMP108"] leaves it out;
          --ampcheck-xfail=AMP108:why and --ampcheck-ignore=AMP108 for a whole session
          @ampcheck.contract(strict=["AMP108"]) makes it an error
"""
    )


def test_an_unknown_check_is_an_error_with_the_nearest(capsys):
    assert main(["explain", "AMP107"]) == 2
    assert "ampcheck explain: no check is called 'AMP107'; did you mean AMP10" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["explain"], ["nonsense"]])
def test_a_wrong_command_line_is_exit_code_two(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("usage: ampcheck")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_documents_the_exit_codes_and_gives_an_example(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--help"])
    assert stopped.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "exit codes: 0 all is well" in shown
    assert "2 nothing could be done: a wrong command line" in shown
    assert f"ampcheck {command}" in shown.partition("example" if command else "usage")[2]


def test_the_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"ampcheck {__version__}\n"


def test_the_command_explains_every_real_check():
    program = (
        "import sys\nfrom ampcheck.cli import COMMANDS, main\nmain(['list'])\ncode = main(['explain', 'AMP'])\n"
        "assert 'torch' not in sys.modules\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "AMP102-clip-scaled-gradients (error)" in done.stdout


def test_nothing_but_what_runs_torch_imports_it(tmp_path):
    (tmp_path / "report.json").write_text('{"version": 1, "environment": {}, "findings": [], "items": [], "costs": []}')
    program = """
import sys
from ampcheck.cli import main
for arguments in (["init", "--stdout"], ["report", "report.json", "--markdown", "out.md"], ["replay", "nowhere.pt"]):
    main(arguments)
sys.exit("torch" in sys.modules or "numpy" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.md").exists()


@pytest.mark.parametrize(
    ("tty", "environment", "coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colours_are_for_a_terminal_that_wants_them(tty, environment, coloured, monkeypatch, capsys):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: tty, raising=False)
    main(["list", "AMP108"])
    assert ("\x1b[33m" in capsys.readouterr().out) == coloured


def test_a_reader_that_has_seen_enough_is_no_fault():
    program = "import sys\nfrom ampcheck.cli import main\nsys.exit(main(['explain', 'AMP']))"
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == ""
    child.stderr.close()
    assert child.wait() == 0


def complete(line, tmp_path):
    """What a shell is told after this line."""
    out = tmp_path / "completions"
    environment = {
        **os.environ, "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line, "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_STDOUT_FILENAME": str(out), "COMP_TYPE": "9",
    }  # fmt: skip
    command = [sys.executable, "-c", "from ampcheck.cli import main; main()"]
    subprocess.run(command, env=environment, capture_output=True, check=False)
    return [word.strip() for word in out.read_text().splitlines()] if out.exists() else None


def test_the_shell_completes_commands_and_checks(tmp_path):
    pytest.importorskip("argcomplete")
    assert "explain" in complete("ampcheck e", tmp_path)
    assert "AMP102" in complete("ampcheck explain AMP10", tmp_path)
    assert "--stdout" in complete("ampcheck init --st", tmp_path)
