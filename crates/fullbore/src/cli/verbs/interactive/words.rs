//! The words of a line, quoted as in a shell.

use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_tree::patterns::escape_name;

/// A word. Wildcards outside of quotes are still known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TypedWord {
    /// The bytes without quotes.
    pub(super) text: Vec<u8>,
    /// The same as a pattern of `.gitignore`, where quoted bytes have no special meaning.
    pub(super) pattern: Vec<u8>,
    /// A `*`, `?` or `[` stands outside of quotes.
    pub(super) has_wildcard: bool,
}

impl TypedWord {
    fn push(&mut self, byte: u8, is_quoted: bool) {
        let is_special = matches!(byte, b'*' | b'?' | b'[');
        self.has_wildcard |= is_special && !is_quoted;
        self.text.push(byte);
        match is_quoted {
            true => self.pattern.extend(escape_name(&[byte])),
            false => self.pattern.push(byte),
        }
    }
}

/// Splits a line: words stand between spaces; `'…'` and `"…"` quote, and `\` quotes one character.
///
/// # Errors
/// [`ErrorKind::Usage`] if a quote is not closed.
pub(super) fn split(line: &[u8]) -> Result<Vec<TypedWord>> {
    let (words, open) = split_open(line);
    match open {
        Some(quote) => {
            let message = format!(
                "cannot read the line: a {} is not closed",
                char::from(quote)
            );
            Err(Error::new(ErrorKind::Usage, message))
        }
        None => Ok(words),
    }
}

/// As [`split`], with the quote that is not closed. A `\` at the end counts as one.
pub(super) fn split_open(line: &[u8]) -> (Vec<TypedWord>, Option<u8>) {
    let mut words = Vec::new();
    let mut word: Option<TypedWord> = None;
    let mut quote = None;
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        match (quote, byte) {
            (None, b' ' | b'\t') => words.extend(word.take()),
            (None, b'\'' | b'"') => {
                quote = Some(byte);
                word.get_or_insert_default();
            }
            (Some(open), byte) if byte == open => quote = None,
            (None | Some(b'"'), b'\\') => match bytes.next() {
                Some(next) => word.get_or_insert_default().push(next, true),
                None => quote = Some(b'\\'),
            },
            _ => word.get_or_insert_default().push(byte, quote.is_some()),
        }
    }
    words.extend(word);
    (words, quote)
}

/// Returns a name as it must be typed.
pub(super) fn quoted(name: &str) -> String {
    let mut typed = String::new();
    for c in name.chars() {
        if c.is_ascii() && !c.is_ascii_alphanumeric() && !"/._-+=:,@%".contains(c) {
            typed.push('\\');
        }
        typed.push(c);
    }
    typed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &str) -> Vec<String> {
        let words = split(line.as_bytes()).unwrap();
        let text = |word: TypedWord| String::from_utf8(word.text).unwrap();
        words.into_iter().map(text).collect()
    }

    #[test]
    fn words_are_quoted_as_in_a_shell() {
        assert_eq!(texts(" add  a b "), ["add", "a", "b"]);
        assert_eq!(
            texts(r#"add 'a b' "c \" d" e\ f ''"#),
            ["add", "a b", "c \" d", "e f", ""]
        );
        for line in ["add 'a", "add \"a", "add a\\"] {
            assert_eq!(
                split(line.as_bytes()).unwrap_err().kind,
                ErrorKind::Usage,
                "{line}"
            );
        }
    }

    #[test]
    fn a_quoted_wildcard_stands_for_itself() {
        let words = split(b"*.c '*.c' \\*.c").unwrap();
        let wild: Vec<_> = words.iter().map(|word| word.has_wildcard).collect();
        assert_eq!(wild, [true, false, false]);
        assert_eq!(words[1].pattern, b"\\*.c");
        assert_eq!(words[1].text, b"*.c");
    }

    #[test]
    fn a_name_is_typed_as_it_is_quoted() {
        for name in ["a b", "it's", "a*[b]", "plain.txt", "back\\slash", "\u{e4}"] {
            assert_eq!(texts(&quoted(name)), [name]);
        }
    }
}
