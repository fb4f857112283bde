//! `fullbore serve`.

use super::{allowed_access::AllowedAccess, serve_session::Serve};
use crate::cli::values::rate;
use clap::{ArgGroup, Args};
use fullbore_format::error::Result;
use fullbore_storage::{AppendRules, Storages, check_host_name, wire::TlsClients};
use std::{net::SocketAddr, num::NonZeroU64, path::PathBuf};

/// `fullbore serve`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("way").required(true).args(["stdio", "listen"]))]
pub(in crate::cli) struct ServeArgs {
    /// Use standard input and output, for the fullbore that started ssh
    #[arg(long, conflicts_with = "listen")]
    // a variable that stands for the other one does not count then
    stdio: bool,
    /// Wait at this address for hosts with a certificate of --tls-ca
    ///
    /// They use fullbore://HOST:PORT. SIGTERM ends the server.
    #[arg(long, value_name = "ADDR:PORT", requires_all = ["allow", "tls_cert", "tls_key", "tls_ca"])]
    pub(in crate::cli) listen: Option<SocketAddr>,
    /// Offer only read:, append: or write:LOCATION, or source:PATH
    ///
    /// read:LOCATION lets the other host read there. append:LOCATION also lets it add backups.
    /// write:LOCATION lets it do everything. LOCATION is a repository, or tape:DRIVE with --stdio:
    /// append:tape:DRIVE then writes behind the data of a tape, or to a tape without backups. source:PATH lets it back up files at or below this
    /// path (backup --run-on dest), and do nothing else. source:PATH can be repeated.
    #[arg(long, value_name = "WHAT:LOCATION", value_parser = |word: &str| AllowedAccess::parse(word).map_err(|error| error.what))]
    allow: Vec<AllowedAccess>,
    /// Take backups of this host only, with append:
    ///
    /// With --listen, the name of the certificate is the host.
    #[arg(long, value_name = "NAME", requires = "allow", conflicts_with = "listen", value_parser = host_name)]
    host: Option<String>,
    /// Limit the bytes of the backups of a host, with append:
    #[arg(long, value_name = "SIZE", requires = "allow", value_parser = rate)]
    quota: Option<NonZeroU64>,
    /// Limit the backups of a host in 24 hours, with append:
    #[arg(long, value_name = "N", requires = "allow", value_parser = clap::value_parser!(u32).range(1..))]
    max_per_day: Option<u32>,
    /// Answer only hosts with this certificate name (repeatable)
    ///
    /// The name is the common name of the certificate, or else its first DNS name. Without this
    /// option, every certificate of --tls-ca is answered.
    #[arg(long, value_name = "NAME", requires = "listen")]
    tls_name: Vec<String>,
    /// Refuse certificates that this PEM revocation list names
    ///
    /// The file holds one list for each authority. It is read again when it has changed, like the
    /// other files of TLS. Open sessions continue.
    #[arg(long, value_name = "FILE", requires = "listen")]
    tls_crl: Option<PathBuf>,
}

fn host_name(word: &str) -> std::result::Result<String, String> {
    check_host_name(word).map_err(|error| error.line())?;
    Ok(word.to_owned())
}

pub(in crate::cli) fn run(args: ServeArgs, storages: &Storages) -> Result<u8> {
    let (allowed, sources_below) = AllowedAccess::divide(args.allow)?;
    let serve = Serve {
        storages: storages.clone(),
        allowed,
        sources_below,
        rules: AppendRules {
            host: args.host,
            quota: args.quota.map(NonZeroU64::get),
            max_per_day: args.max_per_day,
            ..AppendRules::default()
        },
    };
    match args.listen {
        Some(address) => {
            let clients = TlsClients {
                revoked: args.tls_crl,
                names: args.tls_name.into_iter().collect(),
            };
            serve.listen(address, clients)
        }
        None => serve.run(),
    }
    .map(|()| 0)
}
