"""Secrets are recognised, masked and blanked."""

import pytest
from longctx.redaction import mask, redact, secret_values, secret_variables


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


def test_a_text_is_cut_and_its_tokens_are_blanked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "from-the-environment")
    text = "key-1234, hf_abcdefgh12,\nfrom-the-environment and Bearer xyz"
    assert redact(text, "key-1234", None) == "[redacted], [redacted], [redacted] and [redacted]"
    assert redact("word " * 10, longest=12) == "word word w…"
