// Colours of code, for any language of a common form: comments, strings, numbers and words.

const WORDS = new Set(("and as assert async await auto bool boolean break case catch char class const constexpr "
  + "continue def default defer del delete do double elif else end enum except export extends extern "
  + "false False final finally float fn for from func function global go if impl implements import in "
  + "include inline instanceof int interface is lambda let local long loop match mod module move mut "
  + "namespace new nil None nonlocal not null nullptr or override package pass private protected pub "
  + "public raise ref return self Self short signed static str string struct super switch template then "
  + "this throw throws trait true True try type typedef typename typeof undefined union unsafe unsigned "
  + "use using var virtual void volatile where while with yield select insert update into values table "
  + "create drop join group by order having limit distinct echo fi done esac").split(" "));
const HASH = "bash sh shell zsh console python py ruby rb perl yaml yml toml r julia make makefile dockerfile nix ini elixir";
const DASH = "sql lua haskell hs ada";
const NONE = "text txt plain plaintext markdown md output log csv json";
const STRINGS = String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'`;
const listed = (list, name) => list.split(" ").includes(name);

function lexerOf(language) {
  const comment = listed(HASH, language) ? "#[^\n]*" : listed(DASH, language) ? "--[^\n]*"
    : listed(NONE, language) ? "(?!)" : String.raw`//[^\n]*|/\*[^]*?(?:\*/|$)|<!--[^]*?(?:-->|$)`;
  return new RegExp(`(?<comment>${comment})|(?<string>${STRINGS})|`
    + String.raw`(?<number>\b\d[\w.]*)|(?<word>[\p{L}_][\p{L}\p{N}_]*)`, "gu");
}

// Calls `put(from, to, name)` for all parts of a code, in order; a plain part has no name.
export function colour(code, language, put) {
  let at = 0;
  if (language && !listed("text txt plain plaintext markdown md output log", language)) {
    for (const found of code.matchAll(lexerOf(language))) {
      const [name] = Object.entries(found.groups).find(([, value]) => value !== undefined);
      const isWord = name === "word";
      const word = language === "sql" ? found[0].toLowerCase() : found[0];
      if (!found[0] || (isWord && !WORDS.has(word))) continue;
      if (found.index > at) put(at, found.index, "");
      at = found.index + found[0].length;
      put(found.index, at, name);
    }
  }
  if (at < code.length) put(at, code.length, "");
}
