//! Errors that the server sends.

use super::message::Fields;
use crate::session::connect::kind_of_state;
use fullbore_format::error::{Error, ErrorKind, one_line};

/// A file is missing: WAL that was removed.
const UNDEFINED_FILE: &str = "58P01";
/// A slot that has lost its WAL.
const INVALIDATED: &str = "55000";
/// There is no slot of that name.
const UNDEFINED_OBJECT: &str = "42704";
/// A slot is in use.
const IN_USE: &str = "55006";

/// Returns the server's error, with its detail and hint.
pub(super) fn refusal(message: &str, body: &[u8]) -> Error {
    let fields = fields_of(body);
    let state = refusal_field(b'C', &fields).unwrap_or_default();
    let reason = refusal_field(b'M', &fields).unwrap_or_default();
    let advice = advice(&state, &reason);
    let error = Error::new(kind_of_refusal(&state), message).because(reason);
    let error = refusal_field(b'D', &fields)
        .into_iter()
        .fold(error, Error::detail);
    match (advice, refusal_field(b'H', &fields)) {
        (Some(hint), _) => error.hint(hint),
        (None, Some(hint)) => error.hint(hint.trim_end_matches('.').to_owned()),
        (None, None) => error,
    }
}

fn refusal_field(kind: u8, fields: &[(u8, String)]) -> Option<String> {
    let found = fields.iter().find(|(code, _)| *code == kind);
    found.map(|(_, text)| one_line(text))
}

/// WAL that was removed and a slot that has lost its WAL are gone; a slot in use is free again soon.
fn kind_of_refusal(state: &str) -> ErrorKind {
    match state {
        UNDEFINED_FILE | INVALIDATED => ErrorKind::Gone,
        UNDEFINED_OBJECT => ErrorKind::NotFound,
        IN_USE => ErrorKind::Unreachable,
        state => kind_of_state(state),
    }
}

/// What an operator does about a refusal of replication, where the server does not say it.
fn advice(state: &str, message: &str) -> Option<&'static str> {
    match state {
        UNDEFINED_OBJECT => Some("--create-slot makes the slot"),
        IN_USE => Some("each receiver needs a slot of its own"),
        "28000" if message.contains("pg_hba.conf") => Some(
            "add a line to pg_hba.conf, and reload the server: `host replication ROLE ADDRESS/32 scram-sha-256`",
        ),
        // Up to 15 the server names the role "superuser or replication role".
        "28000" | "42501" => {
            Some("the role needs the right to replicate: `alter role ROLE replication`")
        }
        "53300" if message.contains("max_wal_senders") => Some(
            "raise max_wal_senders, and restart the server; each receiver and standby takes one",
        ),
        _ => None,
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
