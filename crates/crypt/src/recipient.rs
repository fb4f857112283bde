//! The people and hosts that something is sealed for.

use super::{
    passphrase::{Passphrase, Prompt},
    ssh::SshRecipient,
};
use age::{
    plugin, scrypt,
    secrecy::{ExposeSecret, SecretString},
    x25519,
};
use fullbore_format::error::{Error, ErrorKind, Result, quoted};
use std::{fmt, fs, path::Path};
use zeroize::Zeroizing;

/// Scrypt's cost as a power of two, as stock age has it: 256 MiB and a second or so.
const SCRYPT_LOG_COST: u8 = 18;

/// Returns a new key, as `age-keygen` writes it, and the recipient that belongs to it.
pub fn new_identity() -> (Zeroizing<String>, String) {
    let identity = x25519::Identity::generate();
    let secret = Zeroizing::new(identity.to_string().expose_secret().to_owned());
    (secret, identity.to_public().to_string())
}

/// One that something is sealed for.
#[derive(Clone)]
pub enum UserRecipient {
    /// `age1…`.
    Native(x25519::Recipient),
    /// `age1NAME1…`, which the program `age-plugin-NAME` knows.
    Plugin(plugin::Recipient),
    /// `ssh-ed25519 AAAA…`.
    Ssh(SshRecipient),
    /// Whoever knows a passphrase.
    Passphrase(SecretString),
}

impl fmt::Display for UserRecipient {
    /// The text that [`UserRecipient::parse`] reads; `passphrase` for a passphrase.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native(recipient) => recipient.fmt(f),
            Self::Plugin(recipient) => recipient.fmt(f),
            Self::Ssh(recipient) => recipient.fmt(f),
            Self::Passphrase(_) => f.write_str("passphrase"),
        }
    }
}

impl fmt::Debug for UserRecipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl UserRecipient {
    /// Reads `age1…` or `ssh-ed25519 AAAA…`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for anything else.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        // An identity in place of a recipient is a secret: it is not repeated in a message.
        if text.to_ascii_uppercase().starts_with("AGE-SECRET-KEY-")
            || text.to_ascii_uppercase().starts_with("AGE-PLUGIN-")
        {
            return Err(
                Error::new(ErrorKind::Usage, "cannot encrypt to a secret key")
                    .hint("give the public key: age-keygen -y FILE prints it"),
            );
        }
        if text.starts_with("ssh-") {
            return SshRecipient::parse(text)
                .map(Self::Ssh)
                .map_err(|value| refused_recipient(text, value));
        }
        if let Ok(recipient) = text.parse() {
            return Ok(Self::Native(recipient));
        }
        text.parse()
            .map(Self::Plugin)
            .map_err(|_| refused_recipient(text, "it is no public key that is known".to_owned()))
    }

    /// As `age` takes it.
    pub(super) fn to_age(&self) -> Result<Box<dyn age::Recipient>> {
        Ok(match self {
            Self::Native(recipient) => Box::new(recipient.clone()),
            Self::Ssh(recipient) => Box::new(recipient.clone()),
            Self::Passphrase(passphrase) => {
                let mut recipient = scrypt::Recipient::new(passphrase.clone());
                recipient.set_work_factor(SCRYPT_LOG_COST);
                Box::new(recipient)
            }
            Self::Plugin(recipient) => {
                let name = recipient.plugin();
                let plugin = plugin::RecipientPluginV1::new(
                    name,
                    std::slice::from_ref(recipient),
                    &[],
                    // No question is put while recipients are read: a plugin that needs an answer
                    // fails.
                    Prompt::default(),
                );
                Box::new(plugin.map_err(|error| {
                    Error::new(
                        ErrorKind::NotFound,
                        format!("could not encrypt to {recipient}"),
                    )
                    .because(error.to_string())
                    .hint("install the plugin of age that the key belongs to")
                })?)
            }
        })
    }
}

impl From<Passphrase> for UserRecipient {
    fn from(passphrase: Passphrase) -> Self {
        Self::Passphrase(passphrase.into_secret())
    }
}

fn refused_recipient(text: &str, reason: String) -> Error {
    let shown: String = text.chars().take(80).collect();
    Error::new(ErrorKind::Usage, format!("cannot encrypt to {}", quoted(shown.as_bytes())))
                .because(reason)
                .hint(match Path::new(text).is_file() {
                    true => "it is a file: @FILE takes the public keys in one; `age-keygen -y FILE` prints the public key of a key",
                    false => "recipients are age1… (age-keygen makes one), ssh-ed25519 AAAA…, or @FILE with one on each line",
                })
}

/// Reads a word of the command line: a recipient, or `@FILE` with one on each line.
///
/// # Errors
/// As [`UserRecipient::parse`]; those of the file, and if it has none.
pub fn recipients_of_word(word: &str) -> Result<Vec<UserRecipient>> {
    let Some(path) = word.strip_prefix('@') else {
        return Ok(vec![UserRecipient::parse(word)?]);
    };
    let name = quoted(path.as_bytes());
    let lines =
        fs::read_to_string(path).map_err(|e| Error::io(format!("could not read {name}"), e))?;
    parse_recipients(&lines, &name)
}

/// Reads a file of recipients, one on each line; empty lines and those with `#` in front are skipped. Messages call it `name`.
///
/// # Errors
/// As [`UserRecipient::parse`], and if there is none.
pub fn parse_recipients(text: &str, name: &str) -> Result<Vec<UserRecipient>> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let recipients: Vec<_> = lines.map(UserRecipient::parse).collect::<Result<_>>()?;
    if recipients.is_empty() {
        return Err(
            Error::new(ErrorKind::Usage, format!("cannot encrypt to {name}"))
                .because("no recipient is in it"),
        );
    }
    Ok(recipients)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SSH: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHsKLqeplhpW+uObz5dvMgjz1OxfM/XXUB+VHtZ6isGN";

    #[test]
    fn recipients_are_read_as_they_are_written() {
        let native = x25519::Identity::generate().to_public().to_string();
        let text = format!("# mine\n{native}\n\n {SSH} alice@host\n");
        let read = parse_recipients(&text, "the file").unwrap();
        assert_eq!(
            read.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [native.as_str(), SSH]
        );
        assert!(matches!(
            read[..],
            [UserRecipient::Native(_), UserRecipient::Ssh(_)]
        ));
    }

    #[test]
    fn other_texts_are_refused_and_a_secret_key_is_not_repeated() {
        let rsa = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC";
        for bad in [
            "",
            "age1",
            "me@host",
            "ssh-ed25519",
            "ssh-ed25519 AAAA",
            rsa,
        ] {
            let error = UserRecipient::parse(bad).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{bad}");
        }
        let identity = x25519::Identity::generate();
        let secret = age::secrecy::ExposeSecret::expose_secret(&identity.to_string()).to_owned();
        for text in [secret.clone(), secret.to_lowercase()] {
            let error = UserRecipient::parse(&text).unwrap_err();
            assert!(!format!("{} {:?}", error.line(), error.detail).contains(&text));
        }
        assert_eq!(
            parse_recipients("# none\n", "x").unwrap_err().kind,
            ErrorKind::Usage
        );
    }
}
