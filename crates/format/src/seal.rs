//! Sealed JSON: a person can read it, and any damage to it is detected. The last line is the BLAKE3
//! of all bytes before that line.
//!
//! The root of a backup and the other small documents of a repository are sealed.

use super::json::{elements_of, parse_counted};
use crate::error::{Error, ErrorKind, Result};
use serde::{Serialize, de::DeserializeOwned};

const SEAL: &str = "\n\"blake3\": \"";
/// Largest document that is read. A root of 256 MiB has a million pages, 8 billion entries, or the
/// checksums of 100 TiB. Other documents have lower limits, see
/// [`max_document_bytes`](super::layout::max_document_bytes).
pub const MAX_BYTES: u64 = 256 << 20;

/// Writes JSON, one member a line, and closes it with a line that has the BLAKE3 of all bytes
/// before that line.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the document is longer than [`MAX_BYTES`]; [`ErrorKind::Bug`] if
/// `value` is not a JSON object.
pub fn seal(value: &impl Serialize) -> Result<Vec<u8>> {
    let map = match serde_json::to_value(value).map_err(json_bug)? {
        serde_json::Value::Object(map) => map,
        _ => {
            return Err(Error::new(
                ErrorKind::Bug,
                "cannot seal JSON that is not an object",
            ));
        }
    };
    let mut text = String::from("{");
    for (key, value) in &map {
        text.push_str(&format!(
            "\n{}: ",
            serde_json::to_string(key).map_err(json_bug)?
        ));
        lines(value, &mut text).map_err(json_bug)?;
        text.push(',');
    }
    let digest = blake3::hash(text.as_bytes());
    text.push_str(&format!("{SEAL}{}\"\n}}\n", digest.to_hex()));
    // Readers refuse a longer document, so it must fail here, while the backup can still be
    // repeated.
    if text.len() as u64 > MAX_BYTES {
        let message = format!(
            "cannot write {} bytes of JSON: the limit for reading is {MAX_BYTES} bytes",
            text.len()
        );
        return Err(Error::new(ErrorKind::Unsupported, message)
            .hint("use a larger --segment-size, which makes the root smaller"));
    }
    Ok(text.into_bytes())
}

fn json_bug(e: serde_json::Error) -> Error {
    Error::new(ErrorKind::Bug, "cannot write JSON").because(e)
}

/// Writes a list of objects one a line, and any other value on one line.
fn lines(value: &serde_json::Value, text: &mut String) -> serde_json::Result<()> {
    match value.as_array() {
        Some(items) if items.iter().any(serde_json::Value::is_object) => {
            let items: Vec<_> = items
                .iter()
                .map(serde_json::to_string)
                .collect::<Result<_, _>>()?;
            text.push_str(&format!("[\n  {}]", items.join(",\n  ")));
        }
        _ => text.push_str(&serde_json::to_string(value)?),
    }
    Ok(())
}

/// Checks and reads the output of [`seal`]; error messages call it `name`.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if any byte differs, or if it has more elements than a document of
/// its length has (see [`elements_of`]).
pub fn open_sealed<T: DeserializeOwned>(bytes: &[u8], name: &str) -> Result<T> {
    open_counted(bytes, name, elements_of(bytes.len()))
}

/// As [`open_sealed`], with a limit of its own for the elements.
///
/// # Errors
/// As [`open_sealed`].
pub fn open_counted<T: DeserializeOwned>(bytes: &[u8], name: &str, elements: usize) -> Result<T> {
    let text = std::str::from_utf8(bytes).map_err(|_| damaged(name, "it is not text"))?;
    let (body, tail) = text
        .rsplit_once(SEAL)
        .ok_or_else(|| damaged(name, "its last line is missing"))?;
    let digest = blake3::hash(body.as_bytes()).to_hex();
    if tail != format!("{digest}\"\n}}\n") {
        return Err(damaged(name, "its digest does not match its contents"));
    }
    parse_counted(bytes, elements).map_err(|reason| damaged(name, &reason))
}

fn damaged(name: &str, reason: &str) -> Error {
    Error::corrupt(format!("{name} is damaged")).because(reason.to_owned())
}
