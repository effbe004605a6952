"""The file of tokens: what may stand in it, what is said against it, and when it is read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.config.admin_tokens import (
    MOST_BYTES,
    Role,
    Token,
    TokenFile,
    digest,
    find,
    parse_tokens,
    read_tokens,
)
from xds_server.config.problems import ConfigError
from xds_server.config.settings import is_loopback, resolve

ADA, BOB = (digest(each).hex() for each in ("ada's", "bob's"))


def test_a_line_is_a_token_and_comments_and_empty_lines_are_nothing():
    text = f"# who\n\nada operator {ADA}\n  bob\tviewer {BOB.upper()} 2027-01-31T00:00:00+01:00 # ends\n"
    ada, bob = parse_tokens(text, source="f")
    assert ada == Token(name="ada", role=Role.OPERATOR, digest=digest("ada's"))
    assert (bob.role, bob.digest, bob.expires_unix_s) == (Role.VIEWER, digest("bob's"), 1801350000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("", "(file): (missing): expected at least one token", id="empty"),
        pytest.param("# ada\n", "expected at least one token", id="only-comments"),
        pytest.param("ada operator", "line 1: 2 words: expected name, role, SHA-256", id="short"),
        pytest.param("ada", "line 1: 1 word: expected", id="one-word"),
        pytest.param(f"a b c d {ADA}", "line 1: 5 words", id="long"),
        pytest.param(
            f"\n-ada viewer {ADA}", 'line 2, name: "-ada": expected at most 63', id="name"
        ),
        pytest.param(
            f"ada root {ADA}", 'line 1, role: "root": expected viewer or operator', id="role"
        ),
        pytest.param(
            "ada viewer secret-itself",
            "line 1, SHA-256: 13 characters: expected 64 hexadecimal digits",
            id="digest",
        ),
        pytest.param(
            f"ada viewer {ADA} soon", 'line 1, expires: "soon": expected a time like', id="expires"
        ),
        pytest.param(
            f"ada viewer {ADA}\nbob operator {ADA}",
            "token of bob: twice: expected each token once: whose is it?",
            id="twice",
        ),
    ],
)
def test_what_cannot_be_used_is_told_with_its_line_and_without_the_secret(text, said):
    with pytest.raises(ConfigError) as caught:
        parse_tokens(text, source="f")
    assert said in str(caught.value)
    assert "secret-itself" not in str(caught.value)


def test_every_problem_is_told_at_once():
    with pytest.raises(ConfigError, match="3 problems"):
        parse_tokens(f"-a x {ADA}\nada viewer no", source="f")


@given(st.text())
def test_whatever_a_file_says_there_are_tokens_or_problems(text):
    try:
        tokens = parse_tokens(text, source="f")
    except ConfigError as error:
        tokens = ()
        problems = error.problems
    else:
        problems = ()
    assert bool(tokens) != bool(problems)


@given(st.text())
def test_only_the_token_itself_is_found(given_text):
    tokens = parse_tokens(f"ada operator {ADA}\nbob viewer {BOB}", source="f")
    found = find(tokens, given_text)
    assert (found is None) == (given_text not in {"ada's", "bob's"})


def test_a_token_is_found_wherever_it_stands():
    tokens = parse_tokens(f"ada operator {ADA}\nbob viewer {BOB}", source="f")
    for text, name in (("ada's", "ada"), ("bob's", "bob")):
        found = find(tokens, text)
        assert found is not None
        assert found.name == name


def test_a_token_has_expired_from_its_moment_on():
    (token,) = parse_tokens(f"ada viewer {ADA} 2027-01-31", source="f")
    end = token.expires_unix_s
    assert end is not None
    assert (token.has_expired(end - 1), token.has_expired(end)) == (False, True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(
            None, "No such file or directory: expected a file that can be read", id="gone"
        ),
        pytest.param(b"\xff\xfe", "not UTF-8", id="not-utf-8"),
        pytest.param(b"#" * (MOST_BYTES + 1), "too long: expected at most", id="too-long"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path, content, said):
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        read_tokens(path)


class Moments:
    """A clock moved by hand, and what a file said of its changes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[str] = []

    def __call__(self) -> float:
        return self.now


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(tmp_path):
    path, moments = tmp_path / "tokens", Moments()
    path.write_text(f"ada operator {ADA}\n")
    file = TokenFile(path, clock=moments)
    file.on_change = moments.said.append

    def names(*, after_s: float = 2.0) -> list[str]:
        moments.now += after_s
        return [each.name for each in file.tokens()]

    assert names() == ["ada"]
    assert moments.said == []

    path.write_text(f"ada operator {ADA}\nbob viewer {BOB}\n")
    assert names() == ["ada", "bob"]
    path.write_text("")
    assert names(after_s=0.5) == ["ada", "bob"], "not looked at for each request"
    assert names() == ["ada", "bob"], "an empty file is a half written one"
    assert "at least one token" in file.trouble
    path.unlink()
    assert names() == ["ada", "bob"]
    assert "No such file" in file.trouble

    other = tmp_path / "other"
    other.write_text(f"bob viewer {BOB}\n")
    other.replace(path)
    assert names() == ["bob"]
    assert file.trouble == ""
    assert len(moments.said) == 4
    assert moments.said[-1] == ""


def test_settings_know_the_files_and_refuse_what_cannot_be_used(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"ada operator {ADA}\n")
    made = resolve(flags={"admin_tokens_file": str(path)}, environ={}, file={})
    assert (made.admin_tokens_file, made.admin_anonymous) == (path, None)
    path.write_text("ada\n")
    with pytest.raises(ConfigError, match="line 1: 1 word"):
        resolve(flags={"admin_tokens_file": str(path)}, environ={}, file={})


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(host, is_local):
    assert is_loopback(host) is is_local
