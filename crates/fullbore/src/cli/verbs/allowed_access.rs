//! What `serve --allow` gives the other side.

use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_storage::Allowed;
use std::{ffi::OsString, path::PathBuf};

/// The one location that the other side may open, and what it may do there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct AllowedLocation {
    /// The operations that are allowed.
    pub(in crate::cli) allowed: Allowed,
    /// The location, as it was given.
    pub(in crate::cli) location: OsString,
}

impl AllowedLocation {
    /// Reads `read:LOCATION`, `append:LOCATION` or `write:LOCATION`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`].
    pub(in crate::cli) fn parse(word: &str) -> Result<Self> {
        let (allowed, location) = word.split_once(':').unwrap_or((word, ""));
        let allowed = match allowed {
            "read" => Some(Allowed::Read),
            "append" => Some(Allowed::Append),
            "write" => Some(Allowed::Write),
            _ => None,
        };
        match allowed {
            Some(allowed) if !location.is_empty() => Ok(Self {
                allowed,
                location: location.into(),
            }),
            _ => Err(Error::new(
                ErrorKind::Usage,
                format!("cannot allow {word:?}: it is not read:, append: or write: and a location"),
            )),
        }
    }
}

/// What `serve --allow` gives the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum AllowedAccess {
    /// A repository.
    Repository(AllowedLocation),
    /// Files and directories at or below a path, to back them up.
    Source(PathBuf),
}

impl AllowedAccess {
    /// Reads `source:PATH`, or as [`AllowedLocation::parse`].
    ///
    /// # Errors
    /// [`ErrorKind::Usage`].
    pub(in crate::cli) fn parse(word: &str) -> Result<Self> {
        match word.strip_prefix("source:") {
            Some(path) if path.starts_with('/') => Ok(Self::Source(path.into())),
            Some(_) => Err(Error::new(
                ErrorKind::Usage,
                format!("cannot allow {word:?}: it is not source: and an absolute path"),
            )),
            None => AllowedLocation::parse(word).map(Self::Repository),
        }
    }

    /// Returns the one location, or all paths.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for several locations, or a location beside paths.
    pub(in crate::cli) fn divide(
        allowed: Vec<Self>,
    ) -> Result<(Option<AllowedLocation>, Vec<PathBuf>)> {
        let count = allowed.len();
        let mut paths = Vec::new();
        for one in allowed {
            match one {
                Self::Source(path) => paths.push(path),
                Self::Repository(location) if count == 1 => return Ok((Some(location), paths)),
                Self::Repository(_) => {
                    let message = "cannot allow more than one location";
                    return Err(Error::new(ErrorKind::Usage, message)
                        .hint("only source:PATH can be repeated"));
                }
            }
        }
        Ok((None, paths))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_is_a_word_and_one_location() {
        let parsed = AllowedLocation::parse("append:/srv/a:b").unwrap();
        assert_eq!(parsed.allowed, Allowed::Append);
        assert_eq!(parsed.location, "/srv/a:b");
        for bad in ["append", "append:", "all:/x", "/x", ""] {
            let error = AllowedLocation::parse(bad).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{bad}");
        }
    }
}
