//! Finds out whether a storage does conditional puts, as leases and the commit of a backup need them.

use super::{Objects, Put, PutIf, Version};
use fullbore_format::{
    error::{ErrorKind, Result},
    layout::{PROBES, letters},
};
use fullbore_platform::debug;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns whether the storage does puts on conditions, and refuses those whose condition does not hold.
///
/// Some object stores know no such conditions, and some that do not know them say nothing and overwrite. A new repository asks, once:
/// five requests for one small object, `probes/` and a random name, which is deleted again where the storage permits that.
///
/// # Errors
/// The storage's, but for what it says about conditions.
pub fn probe(objects: &dyn Objects) -> Result<bool> {
    let key = probe_key();
    let does = does_conditional_puts(objects, &key);
    if let Err(error) = objects.delete(&[key]) {
        debug(|| format!("could not delete what a probe left: {}", error.line()));
    }
    match does {
        Err(error) if error.kind == ErrorKind::Unsupported => Ok(false),
        does => does,
    }
}

/// Returns the key of an object by which something is tried.
pub(super) fn probe_key() -> String {
    let name = letters(RandomState::new().build_hasher().finish(), 12);
    format!("{PROBES}/{name}")
}

fn does_conditional_puts(objects: &dyn Objects, key: &str) -> Result<bool> {
    let put = |bytes: &[u8], condition: PutIf| objects.put(key, bytes, &condition);
    let Put::Done(first) = put(b"first", PutIf::Absent)? else {
        return Ok(false);
    };
    if put(b"again", PutIf::Absent)? != Put::Refused {
        return Ok(false);
    }
    let Put::Done(second) = put(b"second", PutIf::Version(first.clone()))? else {
        return Ok(false);
    };
    let is_stale_refused = put(b"third", PutIf::Version(first))? == Put::Refused;
    Ok(is_stale_refused && holds(objects, key, b"second", &second)?)
}

fn holds(objects: &dyn Objects, key: &str, expected: &[u8], version: &Version) -> Result<bool> {
    let got = objects.get(key)?;
    Ok(got.is_some_and(|(bytes, there)| bytes == expected && there == *version))
}
