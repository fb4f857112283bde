//! A file of names and passwords, as scrypt keeps them.
//!
//! Each line is `NAME:LOG_N:SALT:HASH`, in hexadecimal. The file is read for each try, so that a line that was removed counts at
//! once for whoever enters.

use aws_lc_rs::{constant_time::verify_slices_are_equal, rand};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::secrecy::read_private;
use scrypt::{Params, scrypt};
use std::path::{Path, PathBuf};

/// 2^16 times 1 KiB: 64 MiB and about 0.2 s for a try.
const LOG_N: u8 = 16;
/// The most of a file: 1 GiB for a try.
const MOST_LOG_N: u8 = 20;

/// A file of passwords.
#[derive(Debug, Clone)]
pub struct PasswordFile(pub PathBuf);

impl PasswordFile {
    /// Returns whether the name has this password. It takes as long for a name that is not there.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if others can read the file; [`ErrorKind::Usage`] for a malformed line; the system's.
    pub fn has(&self, name: &str, password: &str) -> Result<bool> {
        let lines = read_lines(&self.0)?;
        let line = lines.iter().find(|line| line.name == name);
        let nobody = PasswordLine::new(String::new(), "")?;
        let is_right = line.unwrap_or(&nobody).is(password)?;
        Ok(line.is_some() && is_right)
    }

    /// Checks that the file can be read and has a line.
    ///
    /// # Errors
    /// As [`PasswordFile::has`].
    pub fn check(&self) -> Result<()> {
        if read_lines(&self.0)?.is_empty() {
            let message = format!("cannot use the password file {:?}: it is empty", self.0);
            return Err(Error::new(ErrorKind::Usage, message).hint(MAKE_LINE));
        }
        Ok(())
    }
}

const MAKE_LINE: &str = "`fullbore web --hash-password NAME` prints a line for it";

/// Returns the line for a name and its password.
///
/// # Errors
/// [`ErrorKind::Usage`] for a name or a password that cannot be used.
pub fn password_line(name: &str, password: &str) -> Result<String> {
    let is_name = !name.is_empty() && !name.contains([':', '\n', '\r']);
    if !is_name || password.chars().count() < 8 {
        let message = "cannot use a name with a colon, or a password of less than 8 characters";
        return Err(Error::new(ErrorKind::Usage, message));
    }
    let line = PasswordLine::new(name.to_owned(), password)?;
    let [salt, hash] = [line.salt, line.hash].map(|bytes| blake3::Hash::from(bytes).to_hex());
    Ok(format!("{name}:{LOG_N}:{salt}:{hash}"))
}

fn read_lines(path: &Path) -> Result<Vec<PasswordLine>> {
    let failed = |error| Error::io(format!("could not read the password file {path:?}"), error);
    let Some(text) = read_private(path).map_err(failed)? else {
        let message = format!("cannot use the password file {path:?}: others can read it");
        return Err(Error::new(ErrorKind::Permission, message).hint("make it 0600"));
    };
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let parsed: Option<Vec<_>> = lines.map(PasswordLine::parse).collect();
    parsed.ok_or_else(|| {
        let message = format!("cannot use the password file {path:?}: a line is malformed");
        Error::new(ErrorKind::Usage, message).hint(MAKE_LINE)
    })
}

struct PasswordLine {
    name: String,
    log_n: u8,
    salt: [u8; 32],
    hash: [u8; 32],
}

impl PasswordLine {
    fn new(name: String, password: &str) -> Result<Self> {
        let mut salt = [0; 32];
        rand::fill(&mut salt)
            .map_err(|_| Error::new(ErrorKind::System, "could not make a random number"))?;
        let mut line = Self {
            name,
            log_n: LOG_N,
            salt,
            hash: [0; 32],
        };
        line.hash = line.hash_of(password)?;
        Ok(line)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.trim().split(':');
        let parsed = Self {
            name: parts.next()?.to_owned(),
            log_n: parts.next()?.parse().ok()?,
            salt: blake3::Hash::from_hex(parts.next()?).ok()?.into(),
            hash: blake3::Hash::from_hex(parts.next()?).ok()?.into(),
        };
        let is_bounded = (10..=MOST_LOG_N).contains(&parsed.log_n);
        (parts.next().is_none() && is_bounded).then_some(parsed)
    }

    fn hash_of(&self, password: &str) -> Result<[u8; 32]> {
        let failed = |_| Error::new(ErrorKind::Bug, "cannot compute a password");
        let params = Params::new(self.log_n, 8, 1, 32).map_err(failed)?;
        let mut hash = [0; 32];
        scrypt(password.as_bytes(), &self.salt, &params, &mut hash)
            .map_err(|_| Error::new(ErrorKind::Bug, "cannot compute a password"))?;
        Ok(hash)
    }

    fn is(&self, password: &str) -> Result<bool> {
        let hash = self.hash_of(password)?;
        Ok(verify_slices_are_equal(&hash, &self.hash).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_its_password_alone() {
        let line = password_line("ann", "correct horse").unwrap();
        let parsed = PasswordLine::parse(&line).unwrap();
        assert_eq!(parsed.name, "ann");
        assert!(parsed.is("correct horse").unwrap());
        assert!(!parsed.is("correct horsf").unwrap());
        for bad in ["a:b", "short", ""] {
            assert!(password_line(bad, "short").is_err());
        }
        let huge = line.replacen(":16:", ":40:", 1);
        assert!(PasswordLine::parse(&huge).is_none());
        assert!(PasswordLine::parse(&format!("{line}:x")).is_none());
    }
}
