"""Keys that a server repeats in an answer are taken out of every text of it before it is written down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mill.api.request import GENERATE, Request
from mill.api.response import Response, Token
from mill.store.record import Record, without_secrets
from mill.support import secrets

KEY = "sk-abcdef-123456"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", {KEY})


def tokens(*texts: str, top: tuple[tuple[int | str, float], ...] = ()) -> tuple[Token, ...]:
    return tuple(Token(None, text, -0.5, top) for text in texts)


@pytest.mark.parametrize(
    "response",
    [
        Response(text=f"your key is {KEY}"),
        Response(text="no", finish_reason=f"{KEY} is over its quota"),
        Response(error=f"{KEY} is no key"),
        Response(label=KEY, ranking=((KEY, -1.0), ("cat", -2.0))),
        Response(label="cat", ranking=(("cat", -1.0), (f"a {KEY}", -2.0))),
        Response(text="yes", tokens=tokens("yes", KEY)),
        Response(text="yes", tokens=tokens("yes", top=((f"<{KEY}>", -0.1), (7, -0.2)))),
        Response(text=f"it is {KEY}", tokens=tokens("it is ", KEY[:5], KEY[5:])),
        Response(text="yes", tokens=tokens("it is ", KEY[:5], KEY[5:])),
        Response(score=-1.0, tokens=tokens(f" {KEY}")),
    ],
)
def test_no_text_of_an_answer_keeps_a_key(response: Response, tmp_path: Path) -> None:
    record = Record(tmp_path / "run")
    kept = record.put(Request(GENERATE, "what is my key?"), response)
    record.close()
    (file,) = (tmp_path / "run/record").iterdir()
    written = file.read_text()
    assert KEY not in written and json.loads(written)["response"] == kept.to_dict()
    assert not any(piece in "".join(token.text for token in kept.tokens or ()) for piece in (KEY, KEY[:5] + KEY[5:]))
    assert "***" in written or kept.tokens is None


def test_a_scrubbed_answer_keeps_everything_else() -> None:
    top = ((f"<{KEY}>", -0.1), (7, -0.2))
    found = without_secrets(
        Response(text="yes", tokens=(Token(3, "yes", -0.5, top), Token(None, KEY, -1.0)), prompt_tokens=4)
    )
    assert found.tokens == (Token(3, "yes", -0.5, (("<***>", -0.1), (7, -0.2))), Token(None, "***", -1.0))
    assert (found.text, found.prompt_tokens) == ("yes", 4)
