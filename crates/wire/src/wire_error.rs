//! Errors as they are sent. What another host says is printed on one line, whatever it is.

use fullbore_format::error::{Error, ErrorKind, one_line};
use minicbor::{Decode, Encode};

/// An [`Error`] as it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct WireError {
    #[n(0)]
    kind: u8,
    #[n(1)]
    what: String,
    #[n(2)]
    because: Option<String>,
    #[n(3)]
    detail: Vec<String>,
    #[n(4)]
    hint: Option<String>,
}

/// Kinds by the numbers that are sent.
const KINDS: [ErrorKind; 12] = [
    ErrorKind::Usage,
    ErrorKind::NotFound,
    ErrorKind::Gone,
    ErrorKind::Exists,
    ErrorKind::Permission,
    ErrorKind::Full,
    ErrorKind::Corrupt,
    ErrorKind::Unsupported,
    ErrorKind::Unreachable,
    ErrorKind::BrokenPipe,
    ErrorKind::System,
    ErrorKind::Bug,
];

/// Bytes of one text of an error at most.
const TEXT_BYTES: usize = 4096;

/// Lines of details of an error at most: with all texts they fit one header.
const DETAIL_LINES: usize = 8;

impl WireError {
    /// Returns the words for `error`.
    pub fn of(error: &Error) -> Self {
        let kind = KINDS.iter().position(|kind| *kind == error.kind);
        let detail = error.detail.iter().take(DETAIL_LINES);
        Self {
            kind: kind.unwrap_or(KINDS.len()) as u8,
            what: shortened(&error.what),
            because: error
                .source
                .as_ref()
                .map(|source| shortened(&source.to_string())),
            detail: detail.map(|line| shortened(line)).collect(),
            hint: error.hint.as_deref().map(shortened),
        }
    }

    /// A broken pipe of the other side is not one of this side.
    pub fn into_error(self) -> Error {
        let kind = match KINDS.get(usize::from(self.kind)) {
            None | Some(ErrorKind::BrokenPipe) => ErrorKind::System,
            Some(kind) => *kind,
        };
        let mut error = Error::new(kind, one_line(&self.what));
        error.detail = self.detail.iter().map(|line| one_line(line)).collect();
        error.hint = self.hint.map(|hint| one_line(&hint).into());
        error.source = self.because.map(|why| one_line(&why).into());
        error
    }
}

fn shortened(text: &str) -> String {
    let fits = |(index, c): &(usize, char)| index + c.len_utf8() <= TEXT_BYTES;
    text.char_indices()
        .take_while(fits)
        .map(|(_, c)| c)
        .collect()
}
