//! What a stream is if it is no tar, told by its first bytes, so that a good file is not called a damaged one.

use crate::{
    error::{Error, ErrorKind, Result},
    format::pax,
};

/// First bytes of what people keep tars in or instead of, its name, and what makes a tar of it.
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

/// May a stream with these first bytes, all of them if they are few, be a tar?
///
/// # Errors
/// [`Kind::NotFound`] if there are none, [`Kind::Unsupported`] if they are of something else.
pub(crate) fn must_be_tar(start: &[u8]) -> Result<()> {
    if start.is_empty() {
        return Err(
            Error::new(ErrorKind::NotFound, "cannot restore: the input is empty")
                .hint("if it comes through a pipe, see why the command before it failed"),
        );
    }
    if pax::begins(start) {
        return Ok(());
    }
    let is = |what: &str| {
        Error::new(ErrorKind::Unsupported, "cannot restore what is no tar").because(what.to_owned())
    };
    match OTHERS.iter().find(|(magic, ..)| start.starts_with(magic)) {
        None if start.len() < pax::BLOCK => Ok(()), // whatever it was, it is cut off
        None => Err(is("it does not begin as one")),
        Some((_, name, None)) => Err(is(&format!("it is {name}"))),
        Some((_, name, Some(decode))) => Err(is(&format!("it is {name}")).hint(format!(
            "if a tar is in it, `{decode} FILE | fullbore restore -` restores that"
        ))),
    }
}
