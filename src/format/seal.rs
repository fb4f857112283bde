//! JSON that a person can read, and of which any damage is found: its last line is the BLAKE3 of all bytes before that line.
//!
//! The root of a backup is written so, and so are the other small objects of a repository.

use crate::error::{Error, ErrorKind, Result};
use serde::{Serialize, de::DeserializeOwned};

const SEAL: &str = "\n\"blake3\": \"";
/// More is not read: a root of 256 MiB has a million pages, 8 billion entries.
pub const MAX_BYTES: u64 = 256 << 20;

/// JSON, one member a line, closed by a line with the BLAKE3 of everything before that line.
pub fn seal(value: &impl Serialize) -> Result<Vec<u8>> {
    let bug = |e: serde_json::Error| Error::new(ErrorKind::Bug, "cannot write JSON").because(e);
    let map = match serde_json::to_value(value).map_err(bug)? {
        serde_json::Value::Object(map) => map,
        _ => return Err(Error::new(ErrorKind::Bug, "only objects are sealed")),
    };
    let mut text = String::from("{");
    for (key, value) in &map {
        text.push_str(&format!("\n{}: ", serde_json::to_string(key).map_err(bug)?));
        lines(value, &mut text).map_err(bug)?;
        text.push(',');
    }
    let digest = blake3::hash(text.as_bytes());
    text.push_str(&format!("{SEAL}{}\"\n}}\n", digest.to_hex()));
    if text.len() as u64 > MAX_BYTES {
        let what = format!(
            "cannot write {} bytes of JSON: no more than {MAX_BYTES} could be read",
            text.len()
        );
        return Err(Error::new(ErrorKind::Unsupported, what)
            .hint("a larger --segment-size makes roots smaller"));
    }
    Ok(text.into_bytes())
}

/// A list of objects, one a line; anything else on one line.
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

/// Check and read what [`seal`] wrote; `name` is what messages call it.
///
/// # Errors
/// [`Kind::Corrupt`] if any byte differs.
pub fn open_sealed<T: DeserializeOwned>(bytes: &[u8], name: &str) -> Result<T> {
    let damaged = |why: &str| Error::corrupt(format!("{name} is damaged")).because(why.to_owned());
    let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is no text"))?;
    let (body, tail) = text
        .rsplit_once(SEAL)
        .ok_or_else(|| damaged("its last line is missing"))?;
    let digest = blake3::hash(body.as_bytes()).to_hex();
    if tail != format!("{digest}\"\n}}\n") {
        return Err(damaged("its digest does not match its contents"));
    }
    serde_json::from_slice(bytes).map_err(|e| damaged(&e.to_string()))
}
