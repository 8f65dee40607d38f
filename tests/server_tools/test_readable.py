"""Pages become text, in linear time, whatever they hold."""

import time
from functools import partial
from itertools import count

import pytest

from dragoman.server_tools.charsets import CODECS
from dragoman.server_tools.readable import STEP, TimeLimit, TooSlow, decode_text, read_html
from tables import each_row

PAGE = b"""<!doctype html><html><head><title> A  page &amp; more </title><style>p{}</style></head>
<body><nav>menu <a href="/m">m</a></nav><main><h1>Hi <b>there</b></h1>
<p>Some <a href='/x?a=1&amp;b=2'>link</a> text
 here, <a href="#top">not this one</a>.<script>var a = "<p>no</p>";</script>
<ul><li>one</li><li>two <i>b</i></ul><pre>code
  x &lt; y</pre><table><tr><td>1</td><td>2</td></tr></table></main><footer>imprint</footer></body></html>"""


def read(page: bytes, content_type: str = "text/html", max_chars: int = 50_000) -> str:
    return read_html(decode_text(page, content_type), "https://a.example/dir/", max_chars).text


def test_headings_links_lists_code_and_tables_become_markdown() -> None:
    page = read_html(decode_text(PAGE, "text/html; charset=utf-8"), "https://a.example/dir/", 50_000)
    assert page.title == "A page & more"
    assert not page.truncated
    assert page.text == (
        "# Hi there\n\nSome [link](https://a.example/x?a=1&b=2) text here, not this one.\n\n- one\n- two b\n\n"
        "```\ncode\n  x < y\n```\n\n | 1 | 2"
    )


def test_without_a_main_part_the_whole_body_is_read_but_for_navigation() -> None:
    assert read(b"<body><nav>menu</nav><p>one<div>two</div><main></main></body>") == "one\n\ntwo"


@pytest.mark.parametrize(
    ("page", "content_type"),
    [
        ("<p>größer</p>".encode("latin-1"), "text/html; charset=ISO-8859-1"),
        (b'<meta charset="latin-1">' + "<p>größer</p>".encode("latin-1"), "text/html"),
        ("<p>größer</p>".encode(), "text/html; charset=no-such-charset"),
        ("<p>größer</p>".encode(), "text/html"),
    ],
)
def test_the_charset_is_that_of_the_header_then_of_the_page(page: bytes, content_type: str) -> None:
    assert read(page, content_type) == "größer"


@each_row(
    "charset", ["punycode", "idna", "undefined", "utf-7", "unicode-escape", "hz", "base64", "rot13", "mbcs", "x" * 99]
)
def test_a_charset_that_the_web_does_not_have_is_read_as_utf_8(charset: str) -> None:
    page = "<p>größer +AGE- \\x41".encode()
    assert read(page, f"text/html; charset={charset}") == "größer +AGE- \\x41"
    assert read(f'<meta charset="{charset}">'.encode() + page) == "größer +AGE- \\x41"


@each_row(
    ("charset", "codec", "text"),
    [
        ("Shift_JIS", "cp932", "日本語 ①"),
        ("euc-kr", "cp949", "한국어 똠"),
        ("gb2312", "gb18030", "中文 €"),
        ("big5", "big5hkscs", "中文"),
        ("windows-1251", "cp1251", "привет"),
        ("us-ascii", "cp1252", "größer"),
        ("iso-2022-jp", "iso2022-jp", "日本語"),
        ("utf-16", "utf-16-le", "größer"),
        ("koi8-u", "koi8-u", "привіт"),
    ],
)
def test_a_charset_of_the_web_is_read_as_browsers_read_it(charset: str, codec: str, text: str) -> None:
    assert read(f"<p>{text}".encode(codec), f"text/html; charset={charset}") == text


@each_row("codec", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_counts_more_than_a_charset(codec: str) -> None:
    assert read("<p>größer".encode(codec), "text/html; charset=latin1") == "größer"


def test_every_label_names_a_codec_that_decodes_any_bytes() -> None:
    for label in CODECS:
        assert isinstance(decode_text(bytes(range(256)) * 3, f"text/plain; charset={label}"), str)


def test_a_page_that_takes_too_long_is_given_up_at_any_step() -> None:
    for page in (b"x" * 100_000, b"<b>" * 100, b"<p '" + b"'" * 100, b"<script>" + b"x" * 100_000):
        limit = TimeLimit(3, partial(next, map(float, count())))
        with pytest.raises(TooSlow):
            read_html(decode_text(page, "text/html", limit.check), "https://a.example/", 50_000, limit.check)


def test_a_long_text_is_not_cut_inside_a_character_reference() -> None:
    for blanks in range(STEP - 8, STEP + 2):
        assert read(b"<pre>" + b"x" * blanks + b"&amp;&amp;").count("&&") == 1


def test_a_quoted_value_may_hold_the_end_of_a_tag() -> None:
    assert read(b"<p title=\"a > b\">text<p title='>'>more") == "text\n\nmore"


def test_links_that_are_not_of_the_web_are_only_text() -> None:
    assert read(b"<a href='javascript:alert(1)'>a</a> <a href='http://['>b</a> <a>c</a>") == "a b c"


def test_a_long_page_is_cut() -> None:
    page = read_html(decode_text(b"<p>" + b"word " * 1000, "text/html"), "https://a.example/", 100)
    assert len(page.text) == 100
    assert page.truncated


HOSTILE = (
    *(b"<!--", b"<", b"<div>", b"<b>", b'<a href="', b"<a x='", b"<script>", b"<title", b"<main", b"<meta"),
    *(b"<a  href=", b"&", b"&#9", b"<nav>", b"<![CDATA[", b"</p", b"<p \"'", b"<pre>", b"<a href=/x>", b"= '", b" "),
)


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.rest
def test_a_hostile_page_takes_time_in_proportion_to_its_size(piece: bytes) -> None:
    def seconds(size: int) -> float:
        page = piece * (size // len(piece))
        began = time.thread_time()
        read(page)
        return time.thread_time() - began

    small = min(seconds(30_000) for _ in range(3))
    assert min(seconds(480_000) for _ in range(2)) < 16 * 4 * small + 0.1  # quadratic: 256 times as long


def test_a_character_reference_of_thousands_of_digits_stays_text() -> None:
    assert read(b"<p>&#" + b"9" * 5000 + b"; x").endswith("; x")
