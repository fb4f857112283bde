//! The first lines of a connection that joins a session.

use std::fmt::Write;

/// What a connection begins with that joins a session, before the secret in hexadecimal digits.
const JOIN: &str = "fullbore join ";

/// The answer to it.
pub(super) const JOINED: &str = "fullbore joined\n";

pub(super) const SECRET_BYTES: usize = 32;

/// The line of a connection that joins the session of a secret.
pub(super) fn join_line(secret: &[u8]) -> String {
    let mut line = JOIN.to_owned();
    for byte in secret {
        let _ = write!(line, "{byte:02x}");
    }
    line + "\n"
}

/// The digest of the secret that a line names: whoever compares digests gives nothing away.
pub(super) fn named_session(line: &[u8]) -> Option<blake3::Hash> {
    let digits = line.strip_suffix(b"\n")?.strip_prefix(JOIN.as_bytes())?;
    (digits.len() == 2 * SECRET_BYTES).then(|| blake3::hash(digits))
}
