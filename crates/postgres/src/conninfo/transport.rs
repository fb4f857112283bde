//! Parameters of encryption and of the detection of a dead peer.

use super::{
    parse::{Given, number, one_of},
    precedence::Environment,
};
use fullbore_format::error::{Error, ErrorKind, Result};
use std::{path::PathBuf, time::Duration};

/// Encryption of a connection.
#[derive(Debug, Clone)]
pub struct Tls {
    /// Level of encryption wanted.
    pub mode: SslMode,
    /// Authorities that may sign the server's certificate.
    pub roots: CertificateRoots,
    /// Paths of the client's certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Whether the password is bound to the encrypted connection.
    pub channel_binding: Binding,
    /// True if TLS begins at once, as servers from 17 on permit.
    pub direct: bool,
}

/// Level of encryption wanted (`sslmode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum SslMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// Authorities that may sign the server's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateRoots {
    /// Any: the certificate is not checked.
    None,
    /// Those that the system trusts.
    System,
    File(PathBuf),
}

/// Whether the password is bound to the encrypted connection (`channel_binding`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    Disable,
    Prefer,
    Require,
}

/// Detection of a dead peer while a statement runs for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// False to send no probes.
    pub wanted: bool,
    /// Silence before the first probe.
    pub idle: Duration,
    /// Pause between probes.
    pub interval: Duration,
    /// Unanswered probes that end the connection.
    pub count: u32,
    /// Time that sent data may stay unacknowledged; zero means the system's default, a quarter of
    /// an hour.
    pub user_timeout: Duration,
}

impl Tls {
    /// Reads the parameters of encryption; the default files are in `~/.postgresql`.
    pub(super) fn new(given: &Given, environment: &Environment) -> Result<Self> {
        let roots = match file(given, environment, "sslrootcert", "root.crt") {
            Some(path) if path.as_os_str() == "system" => CertificateRoots::System,
            Some(path) => CertificateRoots::File(path),
            None => CertificateRoots::None,
        };
        let mode = checked_mode(given, &roots)?;
        let values = [("postgres", false), ("direct", true)];
        let direct = one_of(given, "sslnegotiation", &values, false)?;
        if direct && mode < SslMode::Require {
            let message = "sslnegotiation=direct needs sslmode=require or more";
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let certificate = file(given, environment, "sslcert", "postgresql.crt");
        // A missing key is an error once a certificate is there, so its default file may be missing.
        let key = named_file(given, "sslkey");
        let key = key.or_else(|| environment.at_home(".postgresql/postgresql.key"));
        Ok(Self {
            mode,
            roots,
            identity: certificate.zip(key),
            channel_binding: one_of(given, "channel_binding", &Binding::NAMES, Binding::Prefer)?,
            direct,
        })
    }
}

/// Returns the file that a parameter names.
fn named_file(given: &Given, name: &str) -> Option<PathBuf> {
    let path = given.get(name).filter(|value| !value.is_empty());
    path.map(PathBuf::from)
}

/// Returns the file that a parameter names, or the default file in `~/.postgresql` if it exists.
fn file(given: &Given, environment: &Environment, name: &str, default: &str) -> Option<PathBuf> {
    named_file(given, name).or_else(|| {
        let path = environment.at_home(&format!(".postgresql/{default}"))?;
        path.exists().then_some(path)
    })
}

/// Returns the level of encryption; with the system's roots it must be `verify-full`.
fn checked_mode(given: &Given, roots: &CertificateRoots) -> Result<SslMode> {
    if *roots != CertificateRoots::System {
        return one_of(given, "sslmode", &SslMode::NAMES, SslMode::Prefer);
    }
    let mode = one_of(given, "sslmode", &SslMode::NAMES, SslMode::VerifyFull)?;
    if mode == SslMode::VerifyFull {
        return Ok(mode);
    }
    // As in libpq: anyone can have a certificate that the system trusts, for another name.
    let message = "sslrootcert=system needs sslmode=verify-full";
    Err(Error::new(ErrorKind::Usage, message))
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
    /// Reads the parameters. The default is shorter than the system's two hours: a backup that lost
    /// its session is void and should stop early.
    pub(super) fn new(given: &Given) -> Result<Self> {
        Ok(Self {
            wanted: number::<i64>(given, "keepalives")? != Some(0),
            idle: positive_seconds(given, "keepalives_idle", 10)?,
            interval: positive_seconds(given, "keepalives_interval", 10)?,
            count: number(given, "keepalives_count")?
                .filter(|&count| count > 0)
                .unwrap_or(6),
            user_timeout: Duration::from_millis(
                number(given, "tcp_user_timeout")?.unwrap_or(60_000),
            ),
        })
    }
}

fn positive_seconds(given: &Given, name: &str, default: u64) -> Result<Duration> {
    Ok::<_, Error>(Duration::from_secs(match number::<u64>(given, name)? {
        None | Some(0) => default,
        Some(seconds) => seconds,
    }))
}
