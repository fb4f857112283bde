//! Recognizes other file formats by their first bytes, so that an intact file of another kind is
//! not reported as a damaged tar.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    pax,
};

/// Formats that contain or replace a tar: first bytes, name, and a command that decodes the tar.
const OTHERS: [(&[u8], &str, Option<&str>); 15] = [
    (b"\xfd7zXZ\0", "xz", Some("xz -dc")),
    (b"BZh", "bzip2", Some("bzip2 -dc")),
    (b"LZIP", "lzip", Some("lzip -dc")),
    (b"\x5d\0\0", "lzma", Some("xz -dc")),
    (b"\x1f\x9d", "compress", Some("gzip -dc")),
    (
        b"\x02\x21\x4c\x18",
        "the old format of lz4",
        Some("lz4 -dc"),
    ),
    (b"age-encryption.org/", "age", Some("age -d")),
    (b"-----BEGIN AGE ", "age", Some("age -d")),
    (b"-----BEGIN PGP ", "PGP", Some("gpg -d")),
    (b"070701", "cpio", None),
    (b"070702", "cpio", None),
    (b"070707", "cpio", None),
    (b"\xc7\x71", "cpio", None),
    (b"PK\x03\x04", "zip", None),
    (b"7z\xbc\xaf\x27\x1c", "7z", None),
];

/// Checks that a stream with these first bytes may be a tar. A short slice is the whole stream.
///
/// # Errors
/// [`ErrorKind::NotFound`] for an empty stream, [`ErrorKind::Unsupported`] for another format.
pub(crate) fn check_is_tar(start: &[u8]) -> Result<()> {
    if start.is_empty() {
        return Err(
            Error::new(ErrorKind::NotFound, "cannot read the input: it is empty")
                .hint("if it comes through a pipe, see why the command before it failed"),
        );
    }
    if pax::begins(start) {
        return Ok(());
    }
    match OTHERS.iter().find(|(magic, ..)| start.starts_with(magic)) {
        None if start.len() < pax::BLOCK && !is_text(start) => Ok(()), // too short to tell: it is cut off
        None => Err(not_a_tar("its first bytes are not those of a tar").hint(
            "a repository is a directory; `fullbore list REPO@latest PATH` is about a file in a backup",
        )),
        Some((_, name, None)) => Err(not_a_tar(&format!("it is {name}"))),
        Some((_, name, Some(decode))) => Err(not_a_tar(&format!("it is {name}")).hint(format!(
            "if it contains a tar, restore that with `{decode} FILE | fullbore restore -`"
        ))),
    }
}

/// Returns whether these bytes cannot begin a header: that has a zero behind the name, or at the latest behind the mode.
fn is_text(start: &[u8]) -> bool {
    let has_mode = start.len() >= 108;
    !start.contains(&0) && (has_mode || start.contains(&b'\n'))
}

fn not_a_tar(why: &str) -> Error {
    let message = "cannot read the input: it is not a tar";
    Error::new(ErrorKind::Unsupported, message).because(why.to_owned())
}
