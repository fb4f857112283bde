//! Passphrases, and the questions that a person at the terminal is asked.

use age::{
    Callbacks,
    secrecy::{ExposeSecret, SecretString},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::{debug, secrecy};
use std::{collections::BTreeSet, fmt};
use zeroize::Zeroizing;

/// Characters of a new passphrase at least. At scrypt's cost of 2^18 a processor tries one or two passphrases a second; 12 random
/// letters are 56 bits, which 10,000 processors do not find in 100,000 years. Four words from a list of 7,776 are 51 bits.
const MIN_PASSPHRASE_CHARS: usize = 12;
/// Different characters of a new passphrase at least: "aaaaaaaaaaaa" is long and is found at once.
const MIN_DIFFERENT_CHARS: usize = 6;

/// A passphrase, which is never printed.
#[derive(Clone)]
pub struct Passphrase(SecretString);

impl fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passphrase")
    }
}

impl Passphrase {
    /// Returns the passphrase that is this text.
    pub fn new(text: &str) -> Self {
        Self(SecretString::from(text.to_owned()))
    }

    /// Refuses a passphrase that is easily guessed. Whoever may fetch a key file from a storage can try passphrases without end.
    pub(super) fn check_strength(&self) -> Result<()> {
        let text = self.0.expose_secret();
        let different: BTreeSet<char> = text.chars().collect();
        if text.chars().count() >= MIN_PASSPHRASE_CHARS && different.len() >= MIN_DIFFERENT_CHARS {
            return Ok(());
        }
        let reason = format!(
            "it is easily guessed: it needs at least {MIN_PASSPHRASE_CHARS} characters, {MIN_DIFFERENT_CHARS} of them different"
        );
        Err(Error::new(ErrorKind::Usage, "cannot set this passphrase")
            .because(reason)
            .hint("take five random words, or use a key instead: age-keygen, and --encrypt-to or --for"))
    }

    /// Returns the secret as `age` takes it.
    pub(super) fn into_secret(self) -> SecretString {
        self.0
    }

    /// Returns the text.
    pub(super) fn expose(&self) -> Zeroizing<String> {
        Zeroizing::new(self.0.expose_secret().to_owned())
    }
}

/// Answers questions of plugins and of keys that have a passphrase of their own.
#[derive(Debug, Clone, Default)]
pub struct Prompt {
    passphrase: Option<Passphrase>,
    may_ask: bool,
}

impl Prompt {
    /// Answers with `passphrase`, or lets a person at the terminal answer.
    pub(super) fn new(passphrase: Option<Passphrase>, may_ask: bool) -> Self {
        Self {
            passphrase,
            may_ask,
        }
    }

    /// Returns the passphrase of a key in the file `name`.
    pub(super) fn passphrase_of(&self, name: &str) -> Result<Zeroizing<String>> {
        if let Some(passphrase) = &self.passphrase {
            return Ok(passphrase.expose());
        }
        let typed = if self.may_ask {
            ask(&format!("passphrase of {name}"))?
        } else {
            None
        };
        typed.ok_or_else(|| {
            Error::new(
                ErrorKind::Permission,
                format!("cannot open the key in {name}"),
            )
            .because("it has a passphrase, and none was given")
            .hint("give --passphrase-file FILE or set FULLBORE_PASSPHRASE")
        })
    }
}

impl Callbacks for Prompt {
    fn display_message(&self, message: &str) {
        eprintln!("{message}");
    }

    fn confirm(&self, _: &str, _: &str, _: Option<&str>) -> Option<bool> {
        None
    }

    fn request_public_string(&self, _: &str) -> Option<String> {
        None
    }

    fn request_passphrase(&self, description: &str) -> Option<SecretString> {
        if !self.may_ask {
            return self
                .passphrase
                .as_ref()
                .map(|passphrase| passphrase.0.clone());
        }
        let typed = ask(description).ok()??;
        Some(SecretString::from(typed.to_string()))
    }
}

/// Asks a person at the terminal for a secret; `None` if there is no terminal.
pub(super) fn ask(question: &str) -> Result<Option<Zeroizing<String>>> {
    protect();
    secrecy::ask_secret(question)
        .map_err(|error| Error::io("could not read from the terminal", error))
}

/// Keeps core dumps away from a process that has a key.
pub(super) fn protect() {
    if let Err(error) = secrecy::forbid_core_dumps() {
        debug(|| format!("core dumps are not forbidden: {error}"));
    }
}
