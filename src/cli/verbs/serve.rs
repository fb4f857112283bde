//! `fullbore serve`.

use crate::{
    command::serve::{AllowedLocation, Serve},
    error::Result,
    storage::{access::tls_files, wire::TlsClients},
};
use clap::{ArgGroup, Args};
use std::{net::SocketAddr, path::PathBuf};

/// `fullbore serve`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("way").required(true).args(["stdio", "listen"]))]
pub(in crate::cli) struct ServeArgs {
    /// Talk over standard input and output, with the fullbore that started ssh
    #[arg(long)]
    stdio: bool,
    /// Wait here for hosts with a certificate of --tls-ca, until SIGTERM; they use fullbore://HOST:PORT
    #[arg(long, value_name = "ADDR:PORT", requires_all = ["allow", "tls_cert", "tls_key", "tls_ca"])]
    pub(in crate::cli) listen: Option<SocketAddr>,
    /// Offer one location only, to read:LOCATION it, to append:LOCATION backups to it, or to write:LOCATION it
    #[arg(long, value_name = "WHAT:LOCATION", value_parser = |word: &str| AllowedLocation::parse(word).map_err(|error| error.what))]
    allow: Option<AllowedLocation>,
    /// Answer only hosts whose certificate has this name (repeatable)
    ///
    /// The name is the common name of the certificate, or else its first DNS name. Without this option every certificate of --tls-ca is
    /// answered.
    #[arg(long, value_name = "NAME", requires = "listen")]
    tls_name: Vec<String>,
    /// Refuse certificates that this PEM list has revoked
    ///
    /// The file has a list of each authority. It is read again when it has changed. So are the other files of TLS. A session that is open goes on.
    #[arg(long, value_name = "FILE", requires = "listen")]
    tls_crl: Option<PathBuf>,
}

pub(in crate::cli) fn run(args: ServeArgs) -> Result<u8> {
    let serve = Serve {
        allowed: args.allow,
        ..Serve::default()
    };
    match args.listen {
        Some(address) => {
            let clients = TlsClients {
                revoked: args.tls_crl,
                names: args.tls_name.into_iter().collect(),
            };
            serve.listen(address, tls_files(), clients)
        }
        None => serve.run(),
    }
    .map(|()| 0)
}
