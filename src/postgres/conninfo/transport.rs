//! How a connection is encrypted, and how it is kept.

use super::{
    parse::{Given, number, one_of},
    precedence::Environment,
};
use crate::error::{Error, ErrorKind, Result};
use std::{path::PathBuf, time::Duration};

/// How a connection is encrypted.
#[derive(Debug, Clone)]
pub struct Tls {
    /// How much of it is wanted.
    pub mode: SslMode,
    /// Who may sign the server's certificate.
    pub roots: CertificateRoots,
    /// The client's certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Is the password bound to the encrypted connection?
    pub channel_binding: Binding,
    /// Does encryption begin at once, as 17 and newer permit?
    pub direct: bool,
}

/// How much encryption is wanted (`sslmode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
#[allow(missing_docs)]
pub enum SslMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// Who may sign the server's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateRoots {
    /// Anybody, as nobody asks.
    None,
    /// Whom the system trusts.
    System,
    /// Those in a file.
    File(PathBuf),
}

/// Is the password bound to the encrypted connection (`channel_binding`)?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Binding {
    Disable,
    Prefer,
    Require,
}

/// How a dead peer is noticed while a statement takes long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Is it asked at all?
    pub wanted: bool,
    /// After how much silence.
    pub idle: Duration,
    /// Then how often.
    pub interval: Duration,
    /// How many times in vain.
    pub count: u32,
    /// For how long sent data may stay unacknowledged; if zero, as long as the system has it, a quarter of an hour.
    pub user_timeout: Duration,
}

impl Tls {
    pub(super) fn new(given: &Given, environment: &Environment) -> Result<Self> {
        let path = |name: &str, default: &str| {
            let named = given
                .get(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from);
            named.or_else(|| environment.at_home(default).filter(|path| path.exists()))
        };
        let roots = match path("sslrootcert", ".postgresql/root.crt") {
            Some(path) if path.as_os_str() == "system" => CertificateRoots::System,
            Some(path) => CertificateRoots::File(path),
            None => CertificateRoots::None,
        };
        let system = roots == CertificateRoots::System;
        let default = if system {
            SslMode::VerifyFull
        } else {
            SslMode::Prefer
        };
        let mode = one_of(given, "sslmode", &SslMode::NAMES, default)?;
        if system && mode != SslMode::VerifyFull {
            // As libpq: anybody can have a certificate that the system trusts, for another name.
            return Err(Error::new(
                ErrorKind::Usage,
                "sslrootcert=system needs sslmode=verify-full",
            ));
        }
        let direct = one_of(
            given,
            "sslnegotiation",
            &[("postgres", false), ("direct", true)],
            false,
        )?;
        if direct && mode < SslMode::Require {
            return Err(Error::new(
                ErrorKind::Usage,
                "sslnegotiation=direct needs sslmode=require or more",
            ));
        }
        Ok(Self {
            mode,
            roots,
            identity: path("sslcert", ".postgresql/postgresql.crt").zip(
                given
                    .get("sslkey")
                    .filter(|key| !key.is_empty())
                    .map(PathBuf::from)
                    .or_else(|| environment.at_home(".postgresql/postgresql.key")),
            ),
            channel_binding: one_of(given, "channel_binding", &Binding::NAMES, Binding::Prefer)?,
            direct,
        })
    }
}

impl SslMode {
    const NAMES: [(&str, Self); 6] = [
        ("disable", Self::Disable),
        ("allow", Self::Allow),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
        ("verify-ca", Self::VerifyCa),
        ("verify-full", Self::VerifyFull),
    ];
}

impl Binding {
    const NAMES: [(&str, Self); 3] = [
        ("disable", Self::Disable),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
    ];
}

impl Keepalive {
    /// Sooner than the system's two hours: a backup that has lost its session is void, and should not be copied to its end.
    pub(super) fn new(given: &Given) -> Result<Self> {
        let seconds = |name, default| {
            Ok::<_, Error>(Duration::from_secs(match number::<u64>(given, name)? {
                None | Some(0) => default,
                Some(seconds) => seconds,
            }))
        };
        Ok(Self {
            wanted: number::<i64>(given, "keepalives")? != Some(0),
            idle: seconds("keepalives_idle", 10)?,
            interval: seconds("keepalives_interval", 10)?,
            count: number(given, "keepalives_count")?
                .filter(|&count| count > 0)
                .unwrap_or(6),
            user_timeout: Duration::from_millis(
                number(given, "tcp_user_timeout")?.unwrap_or(60_000),
            ),
        })
    }
}
