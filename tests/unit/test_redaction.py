"""Secrets are recognised, masked and blanked."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from longctx.redaction import encodable, mask, printable, redact, secret_values, secret_variables


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", "hf_abcdef", True),
        ("OPENAI_API_KEY", "sk-abcdef", True),
        ("db_password", "hunter22", True),
        ("AWS_SECRET_ACCESS_KEY", "abcdefgh", True),
        ("TOKENIZERS_PARALLELISM", "false-ish", False),
        ("SSH_KEY_PATH", "/etc/passwd", False),
        ("KEYS", "1", False),
        ("DB_PASS", "abcdefgh", True),
        ("MYSQL_PWD", "abcdefgh", True),
        ("OLDPWD", "/no/longer/there", False),
        ("WARMUP_PASSES", "1000000", False),
        ("XAUTHORITY", "/run/none", False),
        ("PATH", "/usr/bin", False),
    ],
)
def test_which_values_are_secret(name: str, value: str, secret: bool) -> None:
    assert secret_values({name: value}) == ([value] if secret else [])


def test_the_longest_value_is_masked_first() -> None:
    env = {"A_TOKEN": "abcdef", "B_TOKEN": "abcdefgh", "C_TOKEN": "abcdef"}
    assert secret_variables(env)[0] == "B_TOKEN"
    assert secret_values(env) == ["abcdefgh", "abcdef"]
    assert mask("abcdefgh abcdef", secret_values(env)) == "[secret] [secret]"


def test_a_secret_is_masked_without_the_blanks_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert secret_values({"A_TOKEN": "abcdef\n"}) == ["abcdef"]
    assert secret_values({"A_TOKEN": "abc  \n"}) == []
    monkeypatch.setenv("SOME_API_KEY", "  from-the-environment\r\n")
    assert redact("key from-the-environment.") == "key [redacted]."


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("push ghp_0123456789abcdef failed", "push [redacted] failed"),
        ("GET https://me:word@h:80/v1 said no", "GET https://[redacted]@h:80/v1 said no"),
        ("GET http://t0ken@h/x", "GET http://[redacted]@h/x"),
        ("GET /v1?api_key=abc&n=1#access_token=xyz", "GET /v1?api_key=[redacted]&n=1#access_token=[redacted]"),
        ("id AKIAIOSFODNN7EXAMPLE.", "id [redacted]."),
        ("github_pat_11ABCDEFG_xyz, xoxb-123456789012", "[redacted], [redacted]"),
        ("Authorization: Basic dXNlcjpwYXNz", "[redacted]"),
        ("Authorization: Digest abc, x-api-key: abc", "[redacted] [redacted]"),
        ("GET https://me:w/o@r#d@h:80/v1 said no", "GET https://[redacted]@h:80/v1 said no"),
        ("GET http://h:80/a@b, cookie: of code=3", "GET http://h:80/a@b, [redacted] code=3"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----", "[redacted]"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl ends", "[redacted] ends"),
        (
            "clone ssh://git@host/x, max_tokens=128, a basic mistake",
            "clone ssh://git@host/x, max_tokens=128, a basic mistake",
        ),
    ],
)
def test_secrets_are_known_by_their_shape(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert mask(text, []) == shown.replace("[redacted]", "[secret]")


def test_a_text_is_cut_and_its_tokens_are_blanked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "from-the-environment")
    text = "key-1234, hf_abcdefgh12,\nfrom-the-environment and Bearer xyz"
    assert redact(text, "key-1234", None) == "[redacted], [redacted], [redacted] and [redacted]"
    assert redact("word " * 10, longest=12) == "word word w…"


ANYTHING = st.text(st.characters(categories=None))  # half surrogate pairs too


@given(ANYTHING)
def test_a_printable_text_is_one_line_that_utf8_holds(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    shown.encode()
    assert printable(shown) == shown
    assert redact(text).isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – 日本 é", "plain – 日本 é"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07shown", "shown"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("\x9d0;title\x9cshown", "shown"),
        ("\x1bPq#0~\x1b\\shown", "shown"),
        ("\x1bcreset", "reset"),
        ("50%\r100%", "50% 100%"),
        ("a\tb\nc\u2028d\x85e\xa0f", "a b c d e f"),
        ("bell\x07nul\x00del\x7fback\x08", "bell\ufffdnul\ufffddel\ufffdback\ufffd"),
        ("half \ud83d pair", "half \ufffd pair"),
        ("\u202egnp.exe", "\ufffdgnp.exe"),
        ("\ufeffmark", "\ufffdmark"),
        ("open \x1b", "open \ufffd"),
    ],
)
def test_what_a_terminal_would_obey_is_not_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_lines_stay_where_they_are_wanted() -> None:
    assert printable("a\x1b[0m\nb\rc", keep="\n") == "a\nb c"


@given(
    st.recursive(st.none() | st.integers() | ANYTHING, lambda inner: st.lists(inner) | st.dictionaries(ANYTHING, inner))
)
def test_data_that_can_be_encoded_keeps_its_form(value: Any) -> None:
    clean = encodable(value)
    json.dumps(clean, ensure_ascii=False).encode()
    assert encodable(clean) == clean


def test_encoding_takes_nothing_but_halves() -> None:
    data = {"a\ud83d": ["\x1b\n\x00 é", ("\udcff", 1.5, None)]}
    assert encodable(data) == {"a\ufffd": ["\x1b\n\x00 é", ["\ufffd", 1.5, None]]}


def test_a_secret_behind_controls_is_blanked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "from-the-environment")
    assert redact("\x1b[1mfrom-the-\x1b[0menvironment hf_\x1b[0mabcdefgh12") == "[redacted] [redacted]"
