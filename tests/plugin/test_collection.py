"""Where contracts are found, and what their items are called."""

from __future__ import annotations

import pytest

PLAIN = """
@ampcheck.contract(devices="cpu")
def resnet():
    return {}
"""


def test_one_item_a_check(project, ids):
    project.write(PLAIN)
    assert ids() == [
        "test_amp.py::resnet[cpu-AMP101-scale-invariance]",
        "test_amp.py::resnet[cpu-AMP102-clip-scaled-gradients]",
        "test_amp.py::resnet[cpu-AMP108-backward-in-autocast]",
        "test_amp.py::resnet[cpu-AMP502-gradient-parity]",
    ]
    assert project.judged == []


def test_one_item_a_device_and_declared_dtype(project, ids):
    project.write(
        """
@ampcheck.contract(devices=("cpu", "cuda"), dtypes=("float16", "bf16"), select=("AMP101", "AMP5"))
def resnet():
    return {}
"""
    )
    assert ids() == [
        f"test_amp.py::resnet[{device}-{check}]"
        for device in ("cpu", "cuda")
        for check in ("AMP101-scale-invariance", "AMP502-gradient-parity-float16", "AMP502-gradient-parity-bfloat16")
    ]


@pytest.mark.parametrize("above", [True, False])
def test_parametrize_and_marks_stand_above_or_below(project, ids, above):
    marks = '@pytest.mark.parametrize("width", [2, 3])\n@pytest.mark.slow\n'
    declared = '@ampcheck.contract(devices="cpu", select="AMP102")\n'
    project.write((marks + declared if above else declared + marks) + "def resnet(width):\n    return {}\n")
    project.ini("markers = slow: takes long")
    assert ids() == [f"test_amp.py::resnet[{width}-cpu-AMP102-clip-scaled-gradients]" for width in (2, 3)]
    project.judge("-m", "slow").assert_outcomes(passed=2)
    assert project.judged == ["test_amp.py::resnet[2] cpu", "test_amp.py::resnet[3] cpu"]
    assert list(project.outcomes()) == ["test_amp.py::resnet[2] AMP102 as-written", "test_amp.py::resnet[3] AMP102 as-written"]


def test_methods_of_test_classes_get_a_fresh_instance(project):
    project.write(
        """
class TestNets:
    @pytest.fixture(autouse=True)
    def prepare(self):
        self.width = 3

    @pytest.mark.parametrize("depth", [1])
    @ampcheck.contract(devices="cpu", select="AMP102")
    def resnet(self, depth):
        assert not hasattr(self, "spoiled")
        self.spoiled = True
        assert (self.width, depth) == (3, 1)
        return {}

    @pytest.mark.slow
    @ampcheck.contract(devices="cpu", select="AMP102")
    def other(self):
        assert not hasattr(self, "spoiled")
        return {}

    @staticmethod
    @ampcheck.contract(devices="cpu", select="AMP102")
    def still(request):
        return {}
"""
    )
    project.ini("markers = slow: takes long")
    project.judge().assert_outcomes(passed=3)
    assert sorted(project.judged) == [
        "test_amp.py::TestNets::other cpu",
        "test_amp.py::TestNets::resnet[1] cpu",
        "test_amp.py::TestNets::still cpu",
    ]
    project.judge("-m", "slow").assert_outcomes(passed=1, deselected=2)


def test_conftests_are_searched_and_run_once(project, ids):
    project.write(PLAIN + "\nprint('conftest loaded')\ndef test_not_here():\n    assert 0\n", "sub/conftest.py")
    project.write("@pytest.fixture\ndef unused():\n    pass\n", "conftest.py")
    assert ids("-k", "AMP101") == ["sub/conftest.py::resnet[cpu-AMP101-scale-invariance]"]
    result = project.judge("-s")
    result.assert_outcomes(passed=4)
    assert result.stdout.str().count("conftest loaded") == 1


def test_several_conftests_that_are_already_loaded(project, ids):
    project.write(PLAIN, "one/conftest.py")
    project.write(PLAIN, "two/conftest.py")
    assert ids("-k", "AMP101", "one", "two") == [
        f"{d}/conftest.py::resnet[cpu-AMP101-scale-invariance]" for d in ("one", "two")
    ]


def test_conftests_that_are_test_modules_are_collected_once(project, ids):
    project.write(PLAIN, "conftest.py")
    project.ini("python_files = *.py")
    assert len(ids("conftest.py")) == 4
    assert len(ids()) == 4


def test_modules_named_in_the_ini(project, ids):
    project.write(PLAIN + "\ndef test_not_here():\n    assert 0\n", "training/contracts.py")
    project.write("def test_ordinary():\n    pass\n", "test_other.py")
    project.ini("pythonpath = .\nampcheck_modules = training.contracts")
    assert ids("-k", "AMP101 or AMP102") == [
        "training/contracts.py::resnet[cpu-AMP101-scale-invariance]",
        "training/contracts.py::resnet[cpu-AMP102-clip-scaled-gradients]",
    ]
    project.judge().assert_outcomes(passed=5)
    project.judge("--ampcheck-only", "training/contracts.py").assert_outcomes(passed=4, deselected=1)
    assert len(ids("test_other.py::test_ordinary")) == 1


@pytest.mark.parametrize(
    ("modules", "message"),
    [("nowhere.contracts", "*'nowhere.contracts' cannot be found*"), ("nowhere", "*no module 'nowhere'*")],
)
def test_an_unknown_module_is_an_error(project, modules, message):
    project.ini(f"ampcheck_modules = {modules}")
    result = project.judge()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_a_module_that_fails_to_import_is_pytests_error(project):
    project.write("import nothing_of_that_name\n" + PLAIN)
    result = project.judge()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*ERROR collecting test_amp.py*", "*nothing_of_that_name*"])


def test_a_named_module_that_fails_to_import_is_an_error_of_collection(project):
    project.write("1 / 0\n", "contracts.py")
    project.ini("pythonpath = .\nampcheck_modules = contracts")
    result = project.judge()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*contracts cannot be imported: ZeroDivisionError*"])


def test_a_test_name_is_no_test(project):
    project.write(PLAIN.replace("resnet", "test_resnet"))
    assert project.run().ret == pytest.ExitCode.NO_TESTS_COLLECTED
    project.judge().assert_outcomes(passed=4)


def test_without_the_option_nothing_is_collected(project):
    project.write(PLAIN + "\ndef test_ordinary(amp_device):\n    assert amp_device\n")
    project.write(PLAIN, "conftest.py")
    result = project.run(process=True)
    result.assert_outcomes(passed=1)
    assert project.judged == []
    assert "ampcheck" not in result.stdout.str().partition("collected ")[2]


def test_only_leaves_ordinary_tests_out(project):
    project.write(PLAIN + "\ndef test_ordinary():\n    assert 0\n")
    project.run("--ampcheck-only").assert_outcomes(passed=4, deselected=1)


@pytest.mark.parametrize("args", [(), ("--collect-only",), ("-q",)])
def test_no_contract_is_an_error_that_shows_how_to_write_one(project, args):
    project.write("def test_ordinary():\n    pass\n")
    result = project.judge(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: no contract found*", "*@ampcheck.contract", "*--ampcheck-reference*"])


def test_the_example_in_that_error_works(project):
    from ampcheck.session.collect import NONE_FOUND

    example = NONE_FOUND.partition("# tests/test_amp.py\n")[2].partition("`pytest")[0]
    lines = [line.removeprefix("    ") for line in example.splitlines()]
    path = project.path / "test_amp.py"
    path.write_text("\n".join(lines).replace("return step", "return {}").replace("build(amp_device)", "1, 2, 3, 4"))
    project.judge("--ampcheck-device=cpu").assert_outcomes(passed=4)


def test_deselecting_everything_is_no_usage_error(project):
    project.write(PLAIN)
    assert project.judge("-k", "nothing_like_that").ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert project.judge("--deselect", "test_amp.py").ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize("word", ["options", "function", "wrapped"])
def test_our_own_attributes_are_no_keywords(project, word):
    project.write(PLAIN)
    assert project.judge("-k", word).ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_naming_an_ordinary_test_is_no_usage_error(project):
    project.write("def test_ordinary():\n    pass\n")
    project.judge("test_amp.py::test_ordinary").assert_outcomes(passed=1)


def test_an_item_can_be_named(project):
    project.write(PLAIN)
    project.judge("test_amp.py::resnet[cpu-AMP102-clip-scaled-gradients]").assert_outcomes(passed=1)
    project.judge("test_amp.py::resnet").assert_outcomes(passed=4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "@ampcheck.contract(ignore='AMP109')\ndef resnet():\n    return {}",
            "*contract resnet: *no check is called 'AMP109'*",
        ),
        ("@ampcheck.contract(dtypes='float8')\ndef resnet():\n    return {}", "*'float8' is not a 16-bit float dtype*"),
        ("@ampcheck.contract(devices='cuda:1')\ndef resnet():\n    return {}", "*give a device type, 'cuda'*"),
        ("@pytest.fixture\n@ampcheck.contract\ndef resnet():\n    return {}", "*must be the outermost decorator*"),
        (
            "@ampcheck.contract\n@pytest.fixture\ndef resnet():\n    return {}",
            "*resnet is declared as a fixture and as a contract*",
        ),
        ("@ampcheck.contract\nclass Resnet:\n    pass", "*takes a function*not a class*"),
        (
            "class TestIt:\n    @classmethod\n    @ampcheck.contract\n    def resnet(cls):\n        return {}",
            "*a contract cannot be a class method*",
        ),
        (
            "class TestIt:\n    @ampcheck.contract\n    @staticmethod\n    def resnet():\n        return {}",
            "*put @staticmethod above @ampcheck.contract*",
        ),
        (
            "import functools\n\n@functools.cache\n@ampcheck.contract\ndef resnet():\n    return {}",
            "*must be the outermost decorator*",
        ),
    ],
)
def test_a_contract_that_cannot_be_collected_says_why(project, text, message):
    project.write(text + "\n")
    result = project.judge("-W", "ignore::pytest.PytestWarning")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*ERROR collecting test_amp.py*", message])
    assert "session/collect.py" not in result.stdout.str()


def test_two_contracts_of_one_name_are_an_error(project):
    project.write(PLAIN + PLAIN)
    result = project.judge()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*2 contracts are called resnet (lines 5 and 9)*"])


def test_contracts_made_in_a_loop_or_a_branch_are_not_of_one_name(project):
    project.write(
        """
def make(first):
    if first:
        @ampcheck.contract(devices="cpu", select="AMP102")
        def inner():
            return {}
    else:
        @ampcheck.contract(devices="cpu", select="AMP102")
        def inner():
            return {}
    return inner

first, second = make(True), make(False)
if first:
    @ampcheck.contract(devices="cpu", select="AMP102")
    def third():
        return {}
else:
    @ampcheck.contract(devices="cpu", select="AMP102")
    def third():
        return {}
"""
    )
    project.judge().assert_outcomes(passed=3)
    assert project.judged == [f"test_amp.py::{name} cpu" for name in ("first", "second", "third")]


def test_a_contract_cannot_be_asked_for_as_a_fixture(project):
    project.write(PLAIN + "\ndef test_ordinary(resnet):\n    pass\n")
    result = project.judge()
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(["*fixture 'resnet' not found*"])
