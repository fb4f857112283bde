//! The keys that a command was given: files, a passphrase, the environment, a person at a terminal.

use super::{
    identity::{UserIdentity, parse_identities},
    ring::KeyRing,
};
use age::{
    Callbacks,
    secrecy::{ExposeSecret, SecretString},
};
use fullbore_format::error::{Error, ErrorKind, Result, quoted};
use fullbore_platform::{debug, secrecy};
use std::{
    collections::BTreeSet,
    env, fmt,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

/// Characters of a new passphrase at least. At scrypt's cost of 2^18 a processor tries one or two passphrases a second; 12 random
/// letters are 56 bits, which 10,000 processors do not find in 100,000 years. Four words from a list of 7,776 are 51 bits.
const MIN_PASSPHRASE_CHARS: usize = 12;
/// Different characters of a new passphrase at least: "aaaaaaaaaaaa" is long and is found at once.
const MIN_DIFFERENT_CHARS: usize = 6;

/// The variable that names a file with keys.
const KEY_FILE_VARIABLE: &str = "FULLBORE_KEY_FILE";
const PASSPHRASE_VARIABLE: &str = "FULLBORE_PASSPHRASE";

/// The options with which a command reads what is encrypted.
#[derive(Debug, Clone, Default)]
pub struct KeyOptions {
    /// `--key FILE`, any number of them.
    pub key_files: Vec<PathBuf>,
    /// `--passphrase-file FILE`.
    pub passphrase_file: Option<PathBuf>,
    /// The passphrase itself, which no option can give: it would be seen in the list of processes.
    pub passphrase: Option<Passphrase>,
    /// May a person at the terminal be asked?
    pub may_ask: bool,
}

/// A passphrase, which is never printed.
#[derive(Clone)]
pub struct Passphrase(SecretString);

impl fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passphrase")
    }
}

impl Passphrase {
    pub fn new(text: &str) -> Self {
        Self(SecretString::from(text.to_owned()))
    }

    /// Refuses a passphrase that is easily guessed. Whoever may fetch a key file from a storage can try passphrases without end.
    fn check_strength(&self) -> Result<()> {
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

    fn expose(&self) -> Zeroizing<String> {
        Zeroizing::new(self.0.expose_secret().to_owned())
    }
}

impl KeyOptions {
    /// Returns whether there is a key or a passphrase. Nothing is read, and the terminal is not asked.
    pub fn is_given(&self) -> bool {
        !self.key_files.is_empty() || self.passphrase_file.is_some() || self.passphrase.is_some()
    }

    /// Adds `FULLBORE_KEY_FILE` if no key file was given, and `FULLBORE_PASSPHRASE` if no passphrase was.
    #[must_use]
    pub fn with_environment(mut self) -> Self {
        if self.key_files.is_empty() {
            self.key_files
                .extend(env::var_os(KEY_FILE_VARIABLE).map(PathBuf::from));
        }
        if self.passphrase_file.is_none() && self.passphrase.is_none() {
            let text = env::var(PASSPHRASE_VARIABLE).ok().map(Zeroizing::new);
            self.passphrase = text
                .filter(|text| !text.is_empty())
                .map(|text| Passphrase::new(&text));
        }
        self
    }

    pub fn is_empty(&self) -> bool {
        self.key_files.is_empty() && self.passphrase_file.is_none() && self.passphrase.is_none()
    }

    /// The keys in the files.
    ///
    /// # Errors
    /// As [`parse_identities`], or the system's.
    pub fn identities(&self) -> Result<Vec<UserIdentity>> {
        let prompt = Prompt {
            passphrase: self.given_passphrase()?,
            may_ask: self.may_ask,
        };
        let mut identities = Vec::new();
        for path in &self.key_files {
            let bytes = read_small(path)?;
            if KeyRing::is_text_without_identity(&bytes) {
                continue; // of use to `saved_rings` alone
            }
            identities.extend(parse_identities(&bytes, &name_of(path), &prompt)?);
        }
        Ok(identities)
    }

    /// The keys of repositories among the files: each is the text of a ring, as a key file in a repository holds it.
    ///
    /// # Errors
    /// As [`KeyRing::parse`], or the system's.
    pub fn saved_rings(&self) -> Result<Vec<KeyRing>> {
        let mut rings = Vec::new();
        for path in &self.key_files {
            let bytes = read_small(path)?;
            let text = std::str::from_utf8(&bytes).unwrap_or_default();
            if KeyRing::is_text(&bytes) {
                rings.push(KeyRing::parse(text, &name_of(path))?);
            }
        }
        Ok(rings)
    }

    /// The passphrase that was given, or that a person at the terminal gives for `name`.
    ///
    /// # Errors
    /// The system's.
    pub fn passphrase_for(&self, name: &str) -> Result<Option<Zeroizing<String>>> {
        if let Some(passphrase) = self.given_passphrase()? {
            return Ok(Some(passphrase.expose()));
        }
        if !self.may_ask {
            return Ok(None);
        }
        ask(&format!("passphrase of {name}"))
    }

    /// A new passphrase: the one that was given, or one that a person at the terminal types twice.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if there is none, if the two differ, or if it is easily guessed.
    pub fn new_passphrase(&self) -> Result<Passphrase> {
        let passphrase = match self.given_passphrase()? {
            Some(passphrase) => passphrase,
            None => self.ask_twice()?,
        };
        passphrase.check_strength()?;
        Ok(passphrase)
    }

    fn ask_twice(&self) -> Result<Passphrase> {
        let first = if self.may_ask {
            ask("new passphrase")?
        } else {
            None
        };
        let first = first.ok_or_else(|| {
            new_passphrase_error("none was given").hint(
                "give --passphrase-file FILE or set FULLBORE_PASSPHRASE; with `key add`, --new-passphrase-file FILE",
            )
        })?;
        let second = ask("the same again")?;
        if second.as_ref() != Some(&first) {
            return Err(new_passphrase_error("the two differ"));
        }
        Ok(Passphrase::new(&first))
    }

    fn given_passphrase(&self) -> Result<Option<Passphrase>> {
        let Some(path) = &self.passphrase_file else {
            return Ok(self.passphrase.clone());
        };
        let bytes = read_small(path)?;
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| passphrase_file_error(path, "it is not text"))?;
        let line = text.lines().next().unwrap_or_default();
        if line.is_empty() {
            return Err(passphrase_file_error(path, "its first line is empty"));
        }
        Ok(Some(Passphrase::new(line)))
    }
}

fn passphrase_file_error(path: &Path, reason: &'static str) -> Error {
    Error::new(
        ErrorKind::Usage,
        format!("cannot read a passphrase from {}", name_of(path)),
    )
    .because(reason)
}

fn new_passphrase_error(reason: &'static str) -> Error {
    Error::new(ErrorKind::Usage, "cannot set a passphrase").because(reason)
}

impl From<Passphrase> for super::UserRecipient {
    fn from(passphrase: Passphrase) -> Self {
        Self::Passphrase(passphrase.0)
    }
}

fn name_of(path: &Path) -> String {
    quoted(path.as_os_str().as_bytes())
}

fn read_small(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    protect();
    secrecy::read_private(path)
        .map_err(|error| Error::io(format!("could not read {}", name_of(path)), error))?
        .ok_or_else(|| {
            let message = format!("cannot use {}: others can read it", name_of(path));
            Error::new(ErrorKind::Permission, message)
                .hint(format!("make it 0600: chmod 600 {}", name_of(path)))
        })
}

fn ask(question: &str) -> Result<Option<Zeroizing<String>>> {
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

/// Answers questions of plugins and of keys that have a passphrase of their own.
#[derive(Debug, Clone, Default)]
pub struct Prompt {
    passphrase: Option<Passphrase>,
    may_ask: bool,
}

impl Prompt {
    /// The passphrase of a key in the file `name`.
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
