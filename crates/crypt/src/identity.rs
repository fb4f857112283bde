//! The keys of people: files of age, private keys of ssh, passphrases.

use super::{options::Prompt, ssh::SshIdentity, wrapped};
use age::{IdentityFile, scrypt, secrecy::SecretString};
use fullbore_format::error::{Error, ErrorKind, Result};
use ssh_key::PrivateKey;
use std::fmt;
use zeroize::Zeroizing;

/// The highest cost of scrypt that is paid, as a power of two: 1 GiB. What asks for more is hostile or damaged.
const MAX_SCRYPT_LOG_COST: u8 = 20;

const OPENSSH: &[u8] = b"-----BEGIN OPENSSH PRIVATE KEY-----";
const ARMORED: &[u8] = b"-----BEGIN AGE ENCRYPTED FILE-----";

/// A key that opens what was sealed for its holder.
pub struct UserIdentity {
    inner: Box<dyn age::Identity + Send + Sync>,
    /// The kind of identity in words, for messages.
    kind: &'static str,
}

impl fmt::Debug for UserIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserIdentity ({})", self.kind)
    }
}

impl UserIdentity {
    /// The key that a passphrase is.
    pub fn of_passphrase(passphrase: &str) -> Self {
        let mut identity = scrypt::Identity::new(SecretString::from(passphrase.to_owned()));
        identity.set_max_work_factor(MAX_SCRYPT_LOG_COST);
        Self {
            inner: Box::new(identity),
            kind: "passphrase",
        }
    }

    pub(super) fn as_age(&self) -> &dyn age::Identity {
        &*self.inner
    }
}

/// Reads a file of keys: identities of age (and of its plugins), a private key of ssh, or either of these below a passphrase, which
/// `ask` is asked for. Messages call the file `name`.
///
/// # Errors
/// [`ErrorKind::Usage`] if it is none of these, [`ErrorKind::Permission`] if the passphrase is wrong or is not given.
pub fn parse_identities(bytes: &[u8], name: &str, prompt: &Prompt) -> Result<Vec<UserIdentity>> {
    if bytes.trim_ascii_start().starts_with(OPENSSH) {
        return parse_ssh(bytes, name, prompt);
    }
    if wrapped::is_for_passphrase(bytes) {
        let passphrase = prompt.passphrase_of(name)?;
        let identity = UserIdentity::of_passphrase(&passphrase);
        let Some(plain) = wrapped::unwrap_secret(bytes, &[identity], name)? else {
            return Err(wrong_passphrase(name));
        };
        // One layer only: layers in layers would ask for passphrases without end.
        if wrapped::is_for_passphrase(&plain) {
            return Err(no_key(name));
        }
        return parse_identities(&plain, name, prompt);
    }
    // An armored file for keys cannot be opened without another key.
    if bytes.starts_with(ARMORED) {
        return Err(no_key(name).hint("decrypt the file first: age -d FILE"));
    }
    let file = IdentityFile::from_buffer(bytes).map_err(|_| no_key(name))?;
    let identities = file.with_callbacks(prompt.clone()).into_identities();
    let identities = identities.map_err(|error| {
        Error::new(
            ErrorKind::NotFound,
            format!("could not use the key in {name}"),
        )
        .because(error.to_string())
    })?;
    if identities.is_empty() {
        return Err(no_key(name));
    }
    let kind = "age";
    Ok(identities
        .into_iter()
        .map(|inner| UserIdentity { inner, kind })
        .collect())
}

fn parse_ssh(bytes: &[u8], name: &str, prompt: &Prompt) -> Result<Vec<UserIdentity>> {
    let text = bytes.trim_ascii();
    // The reader of PEM wants exactly one line feed at the end.
    let text = Zeroizing::new([text, b"\n"].concat());
    let mut key = PrivateKey::from_openssh(&*text)
        .map_err(|error| no_key(name).because(error.to_string()))?;
    if key.is_encrypted() {
        let passphrase = prompt.passphrase_of(name)?;
        key = key
            .decrypt(passphrase.as_bytes())
            .map_err(|_| wrong_passphrase(name))?;
    }
    let identity = SshIdentity::new(&key).map_err(|refusal| {
        Error::new(
            ErrorKind::Unsupported,
            format!("cannot use the key in {name}"),
        )
        .because(refusal)
    })?;
    Ok(vec![UserIdentity {
        inner: Box::new(identity),
        kind: "ssh",
    }])
}

fn no_key(name: &str) -> Error {
    Error::new(ErrorKind::Usage, format!("cannot read a key from {name}"))
        .because("it is neither a file of age-keygen nor a private key of ssh")
}

fn wrong_passphrase(name: &str) -> Error {
    Error::new(
        ErrorKind::Permission,
        format!("cannot open the key in {name}"),
    )
    .because("the passphrase is not that of the key")
}
