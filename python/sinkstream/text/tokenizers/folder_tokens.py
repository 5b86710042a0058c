"""The tokens that a Hugging Face folder's files name in addition to those in tokenizer.json.

tokenizer.json comes first: a token that it has keeps its id, and a new one gets the next free id.
The other files, their precedence and the order in which tokens are added follow
transformers 5.23 (`TokenizersBackend`):

- tokenizer_config.json names roles (`eos_token`, …) and lists of special tokens. Its
  `added_tokens_decoder` lists added tokens with their flags; if it has one, the two older files
  are not read.
- special_tokens_map.json otherwise replaces roles of tokenizer_config.json.
- added_tokens.json otherwise lists added tokens, which are special if a role names them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from sinkstream.checkpoint.bounded_file import read_optional_json
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError, warn_caller
from sinkstream.text.tokenizers import catch_panics

MAX_SMALL_BYTES = 4 << 20

_CONFIG, _MAP, _ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
_ROLES = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

Token = str | AddedToken


def add_folder_tokens(
    tokenizer: Tokenizer, folder: Path, settings: Mapping[str, Any]
) -> dict[str, str]:
    """Add the tokens that the files next to tokenizer.json name.

    Args:
        tokenizer: The content of tokenizer.json; changed in place.
        folder: The checkpoint.
        settings: The content of its tokenizer_config.json.

    Returns:
        The texts of `bos_token`, `eos_token`, … by name, as chat templates use them.

    Raises:
        CheckpointError: A file is damaged, or lists something that is not a token.
    """
    names = _Names(settings)
    listed = _listed(settings)
    if listed is None:
        names.replace_by(read_optional_json(folder / _MAP, MAX_SMALL_BYTES))
        specials = {str(token) for token in names.written()}
        added = read_optional_json(folder / _ADDED, MAX_SMALL_BYTES)
        listed = {
            _id(_ADDED, token_id, text): AddedToken(
                text, normalized=text not in specials, special=text in specials
            )
            for text, token_id in added.items()
        }
        own = tokenizer.get_added_tokens_decoder()
        _add(tokenizer, {**listed, **own}, names)
    else:
        _add(tokenizer, listed, names)
    _warn_of_other_ids(tokenizer, listed, _CONFIG if "added_tokens_decoder" in settings else _ADDED)
    return {role: str(token) for role, token in names.roles().items()}


class _Names:
    """Roles and special tokens that files name, before they are tokens."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._values = dict(settings)
        # The newer name of `additional_special_tokens`.
        if "additional_special_tokens" in settings and not settings.get("extra_special_tokens"):
            self._values["extra_special_tokens"] = self._values.pop("additional_special_tokens")
        # Roles of this model alone, such as `image_token`.
        self._own: dict[str, Any] = {
            role: self._values.pop(role)
            for role, value in settings.items()
            if _is_role(role) and role not in _ROLES and isinstance(value, str)
        }
        self._take_named_extras()

    def replace_by(self, older: Mapping[str, Any]) -> None:
        """Read special_tokens_map.json, whose names replace those of tokenizer_config.json."""
        for name, value in older.items():
            if name == "extra_special_tokens" and isinstance(value, list):
                known = list(self._values.get(name) or [])
                self._values[name] = [*known, *(token for token in value if token not in known)]
            elif _is_role(name) and isinstance(value, dict):
                self._values[name] = _from_object({**value, "special": True}) or value
            elif _is_role(name) or name.endswith("_special_tokens"):
                self._values[name] = value
        self._take_named_extras()

    def _take_named_extras(self) -> None:
        extras = self._values.get("extra_special_tokens")
        if isinstance(extras, dict):
            del self._values["extra_special_tokens"]
            self._own |= extras

    def written(self) -> list[Any]:
        """Return what the standard roles and `extra_special_tokens` are, unchecked."""
        extras = self._values.get("extra_special_tokens")
        listed = extras if isinstance(extras, list) else []
        return [self._values.get(role) for role in _ROLES] + listed

    def roles(self) -> dict[str, Token]:
        """Return the token of each role, the standard roles first."""
        others = [
            name
            for name, value in self._values.items()
            if _is_role(name) and name not in _ROLES and _is_marked(value)
        ]
        values = {name: self._values.get(name) for name in (*_ROLES, *others)} | self._own
        found = {name: _token(name, value) for name, value in values.items() if value is not None}
        return {name: token for name, token in found.items() if token is not None}

    def extras(self) -> list[Token]:
        """Return the special tokens without a role."""
        values = (
            value if _is_marked(value) else {**value, "special": True} for value in self._extras()
        )
        found = (_token("extra_special_tokens", value) for value in values)
        return [token for token in found if token is not None]

    def _extras(self) -> list[Any]:
        name = "extra_special_tokens"
        value = self._values.get(name if name in self._values else "additional_special_tokens")
        if value is not None and not isinstance(value, list):
            _warn(name, "be a list of tokens", value)
        return value if isinstance(value, list) else []

    def set_default(self, role: str, text: str) -> None:
        """Name a role's token if no file does."""
        self._values.setdefault(role, text)


def _is_role(name: str) -> bool:
    # `add_bos_token` and `add_eos_token` are switches, which tokenizer.json decides.
    return name.endswith("_token") and not name.startswith("add_")


def _is_marked(value: Any) -> bool:
    """Return whether a value is a token, rather than just some object."""
    return not isinstance(value, dict) or value.get("__type") == "AddedToken"


def _listed(settings: Mapping[str, Any]) -> dict[int, AddedToken] | None:
    """Return the tokens of `added_tokens_decoder`, or None if there is no such list."""
    if "added_tokens_decoder" not in settings:
        return None
    values = settings["added_tokens_decoder"]
    where = f"load: {_CONFIG}: `added_tokens_decoder`"
    if not isinstance(values, dict):
        raise CheckpointError(f"{where} must be an object, but is {quoted(values)}.")
    found: dict[int, AddedToken] = {}
    for token_id, value in values.items():
        if not token_id.isdecimal():
            raise CheckpointError(f"{where} must have ids as keys, but has {quoted(token_id)}.")
        if not isinstance(value, dict) or (token := _from_object(value)) is None:
            raise CheckpointError(f"{where} must list tokens, but has {quoted(value)}.")
        found[int(token_id)] = token
    return found


def _token(name: str, value: Any) -> Token | None:
    """Return a token that a file names, or None with a warning if it is not one."""
    token = _from_object(value) if isinstance(value, dict) else value
    if not isinstance(token, str | AddedToken):
        _warn(name, "be a string, or an object with `content`", value)
        return None
    return token


def _from_object(value: Mapping[str, Any]) -> AddedToken | None:
    flags = {name: value[name] for name in _FLAGS if name in value}
    content = value.get("content")
    if not isinstance(content, str) or not all(isinstance(flag, bool) for flag in flags.values()):
        return None
    return AddedToken(content, **flags)


def _id(file: str, value: Any, text: str) -> int:
    if type(value) is not int or value < 0:
        raise CheckpointError(
            f"load: {file}: {quoted(text)} must have an id, a nonnegative integer, but has "
            f"{quoted(value)}."
        )
    return value


def _add(tokenizer: Tokenizer, listed: Mapping[int, AddedToken], names: _Names) -> None:
    """Add tokens to a tokenizer, in the order that determines the ids of new ones."""
    if (padding := tokenizer.padding) is not None:
        names.set_default("pad_token", padding["pad_token"])
    texts = {token.content: token for _, token in sorted(listed.items())}
    roles = names.roles()
    named = {
        role: texts.get(str(token), token) if role in _ROLES else token
        for role, token in roles.items()
    }
    tokens: list[Token] = [token for _, token in sorted(listed.items())]
    own = tokenizer.get_added_tokens_decoder().values()
    known = {token.content for token in own} | {*texts}
    for token in (*named.values(), *names.extras()):
        if str(token) not in known and token not in tokens:
            tokens.append(token)
    # What tokenizer.json calls special stays so.
    special = {str(token) for token in roles.values()}
    special |= {token.content for token in own if token.special}
    with catch_panics(
        "load: the files next to tokenizer.json must name only tokens that the tokenizer can add, "
        "but do not"
    ):
        tokenizer.add_tokens([_as_added(token, special) for token in tokens])


def _as_added(token: Token, special: Collection[str]) -> AddedToken:
    if isinstance(token, str):
        return AddedToken(token, special=True)
    if token.content in special:
        token.special = True
    return token


def _warn_of_other_ids(tokenizer: Tokenizer, listed: Mapping[int, AddedToken], file: str) -> None:
    """Warn if a file gives a token an id that it does not have."""
    for declared, token in listed.items():
        token_id = tokenizer.token_to_id(token.content)
        if token_id not in (None, declared):
            warn_caller(
                f"load: {file} must give {quoted(token.content)} the id {token_id}, which "
                f"follows from tokenizer.json, but gives it {declared}, which is ignored."
            )


def _warn(name: str, rule: str, value: Any) -> None:
    warn_caller(
        f"load: {_CONFIG} or {_MAP}: `{name}` must {rule}, but is {quoted(value)}. It is ignored."
    )
