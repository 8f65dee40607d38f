"""Each rule of `tools/rules` finds what violates it, and nothing else."""

from pathlib import Path

from tools.rules.class_names import find_repeated
from tools.rules.documents import NAMED_FILE, find_missing_anchors, find_missing_files, find_missing_links
from tools.rules.exceptions import find_truth_tests
from tools.rules.protocol_names import find_names
from tools.rules.purity import find_impure
from tools.rules.sizes import find_long
from tools.rules.threats import find_gaps
from tools.rules.words import find_participles, find_private_words

PRIVATE_WORDS = {
    "def told_usage(): ...": "told_usage",
    "class ToldUsage: ...": "ToldUsage",
    "def f(asked): ...": "asked",
    "for said in (): ...": "said",
    "x = 1  # as nobody knows": "nobody",
    '"""Bytes come in; frames go out."""': "come in;",
    'raise ValueError("the server fell silent")': "fell silent",
}
IMPURE = {
    "from datetime import datetime\nat = datetime.now()": ["2: datetime.now"],
    "import datetime as d, datetime\nat = datetime.datetime.utcnow()": ["2: datetime.datetime.utcnow"],
    "from uuid import UUID, uuid4": ["1: uuid.uuid4"],
    "import uuid\nid = uuid.uuid4().hex": ["2: uuid.uuid4"],
    "clock = date.today": ["1: date.today"],
    "print(open('x').read())": ["1: print", "1: open"],
    "def read(self, now):\n    return self.now() + now() + self.open(1)": [],
    "from datetime import datetime\nat = datetime.fromtimestamp(now, UTC)": [],
}
PROTOCOL_NAMES = {
    'if protocol.name == "messages":\n    pass': ["1: 'messages'"],
    'post("/v1/messages")': ["1: '/v1/messages'"],
    "model.chat_tools = False": ["1: chat_tools"],
    "def make_kiro(): ...": ["1: make_kiro"],
    "from dragoman.translate.protocols.chat import PROTOCOL": ["1: dragoman.translate.protocols.chat"],
    '"""Chat and Messages are protocols."""\nresponses = read("the messages")': [],
    "from dragoman.translate.protocols import PROTOCOLS": [],
}
TRUTH_TESTS = {
    "try: ...\nexcept OSError as error:\n    log(error or 'slow')": ["3: error"],
    "try: ...\nexcept OSError as bad:\n    x = str(bad) or 'slow'": ["3: bad"],
    "try: ...\nexcept OSError as error:\n    x = error.strerror or error": [],
    "def f(error=None):\n    return error or 'none'": [],
}
FUNCTIONS = "def _shown(): ...\n\nclass A:\n    @property\n    def sent(self): ...\n\n    def held(self): ...\n"


def test_private_words_are_found_where_a_module_defines_or_writes_them() -> None:
    for source, word in PRIVATE_WORDS.items():
        assert any(found.endswith(f": {word}") for found in find_private_words(source, "module.py")), source
    assert list(find_private_words("size = file.tell()\n", "module.py")) == []
    assert list(find_participles(FUNCTIONS, "module.py")) == ["module.py:1: _shown", "module.py:7: held"]


def test_a_class_that_stands_in_two_modules_is_found() -> None:
    modules = {
        "a.py": "class Page: ...\nclass _Own: ...",
        "b.py": "class Page: ...\nclass Other: ...",
        "c.py": "class _Own: ...",
    }
    assert list(find_repeated(modules)) == ["class Page stands in a.py, b.py"]


def test_impure_calls_and_protocol_names_are_found() -> None:
    for source, names in IMPURE.items():
        assert list(find_impure(source)) == names, source
    for source, names in PROTOCOL_NAMES.items():
        assert list(find_names(source)) == names, source


def test_an_exception_that_is_tested_for_truth_is_found() -> None:
    for source, places in TRUTH_TESTS.items():
        assert list(find_truth_tests(source)) == places, source


def test_a_long_function_is_found() -> None:
    assert list(find_long("def f():\n" + "    x = 1\n" * 60, "module.py")) == ["module.py:1 f: 61 lines, at most 60"]
    assert list(find_long("def f():\n" + "    x = 1\n" * 59, "module.py")) == []


def test_a_dead_link_and_a_missing_file_are_found(tmp_path: Path) -> None:
    text = "[gone](docs/gone.md#part) [here](here.md) [web](https://example.com) `tests/gone.py` `tests/NAME.py`"
    (tmp_path / "here.md").touch()
    assert find_missing_links(tmp_path / "page.md", text) == ["docs/gone.md"]
    (tmp_path / "here.md").write_text("## Part one\n")
    assert find_missing_anchors(tmp_path / "page.md", "[a](here.md#part-one) [b](here.md#part)") == ["here.md#part"]
    assert find_missing_files(tmp_path, NAMED_FILE.findall(text)) == ["tests/gone.py"]


def test_a_threat_without_code_or_test_and_a_name_of_nothing_are_found(tmp_path: Path) -> None:
    (tmp_path / "code.py").touch()
    (tmp_path / "test_it.py").write_text("def test_this() -> None: ...\n\nasync def test_that() -> None: ...\n")
    head = "| threat | code | test |\n|---|---|---|\n"
    rows = {
        "| a | `code.py` | `test_it.py::test_this`, `test_it.py::test_that` |": [],
        "| a | `code.py` | none yet |": ["no code or no test is named: a"],
        "| a | `gone.py` | `test_it.py::test_other` |": [
            "gone.py does not exist",
            "test_it.py::test_other does not exist",
        ],
        "| a | `code.py` | `test_it.py` |": ["test_it.py does not exist"],
        "| a | `code.py` |": ["not a row of three columns: | a | `code.py` |"],
    }
    for row, gaps in rows.items():
        assert list(find_gaps(tmp_path, head + row)) == gaps, row
