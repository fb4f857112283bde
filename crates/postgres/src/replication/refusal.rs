//! Errors that the server sends.

use super::message::Fields;
use crate::session::connect::kind_of_state;
use fullbore_format::error::{Error, one_line};

/// Returns the server's error, with its detail and hint.
pub(super) fn refusal(message: &str, body: &[u8]) -> Error {
    let fields = fields_of(body);
    let field = |kind: u8| {
        let found = fields.iter().find(|(of, _)| *of == kind);
        found.map(|(_, text)| one_line(text))
    };
    let kind = kind_of_state(&field(b'C').unwrap_or_default());
    let error = Error::new(kind, message).because(field(b'M').unwrap_or_default());
    let error = field(b'D').into_iter().fold(error, Error::detail);
    match field(b'H') {
        Some(hint) => error.hint(hint.trim_end_matches('.').to_owned()),
        None => error,
    }
}

/// Returns the SQLSTATE of the server's error.
pub(super) fn state_of(body: &[u8]) -> String {
    let fields = fields_of(body);
    let state = fields.into_iter().find(|(kind, _)| *kind == b'C');
    state.map_or_else(String::new, |(_, text)| text)
}

/// The fields of an error; those of a message that ends early are left out.
fn fields_of(body: &[u8]) -> Vec<(u8, String)> {
    let mut fields = Fields(body);
    let mut found = Vec::new();
    while let (Ok(kind @ 1..), Ok(text)) = (fields.byte(), fields.text()) {
        found.push((kind, String::from_utf8_lossy(text).into_owned()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::error::ErrorKind;

    #[test]
    fn the_fields_of_an_error_are_read() {
        let body = b"SFATAL\0C28P01\0Mno\nway\0Hask.\0\0";
        let error = refusal("could not", body);
        assert_eq!(error.kind, ErrorKind::Permission);
        assert!(
            error.line().starts_with("could not: no"),
            "{}",
            error.line()
        );
        assert_eq!(error.hint.as_deref(), Some("ask"));
        assert_eq!(state_of(body), "28P01");
        for cut in 0..body.len() {
            let _ = refusal("could not", &body[..cut]);
        }
    }
}
