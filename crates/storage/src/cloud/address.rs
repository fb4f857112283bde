//! Addresses of object stores, as they are named on the command line.

use fullbore_format::error::{Error, ErrorKind, Result, quoted};
use fullbore_wire::key::{check_prefix, is_below};
use std::fmt;

/// The protocols of object stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloudService {
    /// Amazon S3, and all that speak its protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
}

impl CloudService {
    /// Returns the scheme of its addresses.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gcs => "gs",
            Self::Azure => "az",
        }
    }
}

/// A place in an object store: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudAddress {
    /// The protocol.
    pub service: CloudService,
    /// The bucket; for Azure the container.
    pub bucket: String,
    /// Names before every key, without slashes at its ends; may be empty.
    pub prefix: String,
}

impl CloudAddress {
    /// Parses an address; `None` if the text has another scheme or none.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if it has the scheme of an object store, and no bucket or a prefix that cannot begin a key.
    pub fn parse(text: &str) -> Result<Option<Self>> {
        let Some((scheme, place)) = text.split_once("://") else {
            return Ok(None);
        };
        let service = match scheme {
            "s3" => CloudService::S3,
            "gs" => CloudService::Gcs,
            "az" => CloudService::Azure,
            _ => return Ok(None),
        };
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let prefix = prefix.trim_end_matches('/');
        let refused = |why: &str| {
            let message = format!("cannot use {} as a storage", quoted(text.as_bytes()));
            Error::new(ErrorKind::Usage, message)
                .because(why)
                .hint(format!(
                    "write {scheme}://BUCKET or {scheme}://BUCKET/PREFIX"
                ))
        };
        if let Some(fault) = fault_of_bucket(bucket) {
            return Err(refused(fault));
        }
        if check_prefix(prefix).is_err() {
            return Err(refused("its prefix is not a path of plain names"));
        }
        Ok(Some(Self {
            service,
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
        }))
    }

    /// Returns whether `other` is this place or a place below it.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let is_one_bucket = self.service == other.service && self.bucket == other.bucket;
        let is_below = self.prefix.is_empty() || is_below(&other.prefix, &self.prefix);
        is_one_bucket && (is_below || self.prefix == other.prefix)
    }
}

impl fmt::Display for CloudAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.service.scheme(), self.bucket)?;
        if self.prefix.is_empty() {
            return Ok(());
        }
        write!(f, "/{}", self.prefix)
    }
}

/// Returns why a text is no name of a bucket. Letters, digits and a few marks are all that any store has in the name of a bucket. `@` and
/// `:` would be a password or a port.
fn fault_of_bucket(bucket: &str) -> Option<&'static str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if bucket.is_empty() {
        return Some("it names no bucket");
    }
    if !bucket.chars().all(is_plain) {
        return Some(
            "the name of its bucket has other signs than letters, digits, '-', '.' and '_'",
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_scheme_a_bucket_and_a_prefix() {
        let parsed = |text: &str| CloudAddress::parse(text).unwrap().unwrap();
        let address = parsed("s3://vault/db1/main");
        assert_eq!(
            (
                address.service,
                address.bucket.as_str(),
                address.prefix.as_str()
            ),
            (CloudService::S3, "vault", "db1/main")
        );
        assert_eq!(parsed("gs://vault").to_string(), "gs://vault");
        assert_eq!(parsed("az://vault/").to_string(), "az://vault");
        assert_eq!(parsed("s3://vault/a/").to_string(), "s3://vault/a");
        for other in ["/srv/backup", "s3:vault", "ssh://host/x", "file:///x", "-"] {
            assert_eq!(CloudAddress::parse(other).unwrap(), None, "{other}");
        }
    }

    #[test]
    fn an_address_without_a_bucket_or_with_an_odd_prefix_is_refused() {
        for text in [
            "s3://",
            "s3:///x",
            "s3://user:word@vault/x",
            "s3://v/../x",
            "s3://v//x",
            "gs://v/a\n",
        ] {
            let error = CloudAddress::parse(text).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{text}");
        }
    }
}
