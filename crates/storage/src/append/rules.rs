//! Whose backups a host may add, and how much.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text::binary_bytes,
};

/// Who adds backups, and how much.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AppendRules {
    /// The host that its backups must be of. Without it only an encrypted repository takes backups, where a key
    /// proves who made them.
    pub host: Option<String>,
    /// Bytes that the backups of the host may take.
    pub quota: Option<u64>,
    /// Backups that the host may begin within 24 hours.
    pub max_per_day: Option<u32>,
    /// Whether the objects were opened with a key: roots are plain then, though the repository is encrypted.
    pub is_opened: bool,
}

impl AppendRules {
    /// Returns the rules for a host whose certificate has this name. A name that cannot be the name of a host is none.
    pub fn for_certificate(&self, name: Option<String>) -> Self {
        Self {
            host: name.filter(|name| check_host_name(name).is_ok()),
            ..self.clone()
        }
    }

    /// Returns the host, if it has a limit.
    pub(super) fn limited_host(&self) -> Option<&str> {
        let is_limited = self.quota.is_some() || self.max_per_day.is_some();
        self.host.as_deref().filter(|_| is_limited)
    }

    /// Refuses more bytes than the host may have.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] if the backups of the host take more than they may.
    pub(super) fn check_used(&self, used: u64) -> Result<()> {
        match self.quota {
            Some(quota) if used > quota => {
                let message = "cannot store more: this host has used up its quota";
                let (used, quota) = (binary_bytes(used), binary_bytes(quota));
                let why = format!("its backups would take {used}, and may take {quota}");
                Err(Error::new(ErrorKind::Full, message)
                    .because(why)
                    .hint("forget and prune backups on the server, or raise --quota of the server"))
            }
            _ => Ok(()),
        }
    }
}

/// Refuses a name of a host that cannot stand in a key.
///
/// # Errors
/// [`ErrorKind::Usage`].
pub fn check_host_name(name: &str) -> Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=64).contains(&name.len()) && name.bytes().all(is_plain) && !name.starts_with('.') {
        return Ok(());
    }
    let message = format!("cannot use {name:?} as the name of a host");
    Err(Error::new(ErrorKind::Usage, message)
        .because("it is not 1 to 64 letters from a to z, digits, dots, hyphens and underscores"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_cannot_stand_in_a_key_is_none() {
        let host = |name: &str| {
            let rules = AppendRules::default();
            rules.for_certificate(Some(name.to_owned())).host
        };
        for name in ["web1", "WEB-1.example.org", "a_b"] {
            assert_eq!(host(name).as_deref(), Some(name));
        }
        for name in ["", "a/b", "..", ".a", "a b", "ä", &"x".repeat(65)] {
            assert_eq!(host(name), None, "{name}");
        }
    }
}
